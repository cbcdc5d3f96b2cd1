"""Keys and values as 8-bit whole numbers, on NumPy arrays."""

import numpy as np

from lockstep.fast.shapes import Array


def absmax(x: Array, group: int) -> tuple[Array, Array]:
    """Return int8 codes of (..., D) and the scale of each group of dimensions.

    Differs from the reference: in nothing; the codes are made in one buffer.
    """
    groups = x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // group, group)
    scales = (np.maximum(groups.max(axis=-1), -groups.min(axis=-1)) / 127).astype(x.dtype)
    divisors = scales.astype(np.float32)
    divisors[divisors == 0] = 1
    with np.errstate(invalid="ignore"):
        groups /= divisors[..., None]
        np.clip(np.rint(groups, out=groups), -127, 127, out=groups)
        groups[np.isnan(groups)] = 0
        return groups.astype(np.int8).reshape(x.shape), scales


def from_absmax(codes: Array, scales: Array) -> Array:
    """Return codes times scales, in the dtype of the scales."""
    groups = codes.reshape(*scales.shape, codes.shape[-1] // scales.shape[-1])
    with np.errstate(invalid="ignore"):
        out = groups.astype(scales.dtype) * scales[..., None]
    return out.reshape(codes.shape)
