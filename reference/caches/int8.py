"""Keys and values as 8-bit whole numbers, with a scale for each group of a head's dimensions."""

import numpy as np

from lockstep.reference.precision import accumulator
from lockstep.reference.shapes import Array


def absmax(x: Array, group: int) -> tuple[Array, Array]:
    """Return codes and scales of (..., D): q = round(x / s) with s = max |x| / 127 of a group.

    Rounding: s to the dtype of `x`, then the quotient to the nearest whole number with
    ties to even. The error is at most s / 2, or 127 times what rounding took from s, and the
    rounding of q s. Edges: a group of zeros gives zeros, a value that is not finite spoils its
    group. Below 2^-14 a scale in float16 has steps of 2^-24, so of a group whose values are all
    below 0.0078 up to 127 * 2^-25 = 3.8e-6 are lost: 1.05e-5 comes back as 7.6e-6.
    """
    width, dtype = x.shape[-1], accumulator(x.dtype)
    wide = x.astype(dtype).reshape(*x.shape[:-1], width // group, group)
    scales = (np.abs(wide).max(axis=-1) / dtype.type(127)).astype(x.dtype)
    divisors = np.where(scales == 0, 1, scales).astype(dtype)[..., None]
    with np.errstate(invalid="ignore"):
        codes = np.rint(wide / divisors).clip(-127, 127)
        codes = np.where(np.isnan(codes), 0, codes)
        return codes.astype(np.int8).reshape(x.shape), scales


def from_absmax(codes: Array, scales: Array) -> Array:
    """Return codes times scales, in the dtype of the scales: one rounding."""
    dtype = accumulator(scales.dtype)
    groups = codes.reshape(*scales.shape, codes.shape[-1] // scales.shape[-1]).astype(dtype)
    with np.errstate(invalid="ignore"):
        values = groups * scales.astype(dtype)[..., None]
        return values.astype(scales.dtype).reshape(codes.shape)
