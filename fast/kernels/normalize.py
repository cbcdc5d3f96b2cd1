"""Vectors scaled to unit root mean square and by a gain, each in two passes."""

import numpy as np

from lockstep.fast.kernels.again import empty
from lockstep.fast.kernels.alike import alike
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, fma, multiplied, splat, total
from lockstep.fast.kernels.memory import floats, seen
from lockstep.fast.kernels.pairs import rounded_like, store_rounded
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.shapes import Gain, Hidden


def normalized(x: Hidden, gain: Gain, *, eps: float) -> Hidden | None:
    """Normalise the vectors along the last axis; None if they are not in whole lanes of a kind.

    They are float32 or bfloat16, which is rounded before the gain and after it.
    """
    if gain.dtype != x.dtype and alike(x) is not None:
        with np.errstate(over="ignore", under="ignore"):
            gain = gain.astype(x.dtype)
    given = alike(x, gain)
    if given is None:
        return None
    shape, width, size = x.shape, x.shape[-1], x.size
    heads = x.shape[-2] if x.ndim > 3 else 1
    out = empty((size // (heads * width), heads, width), x.dtype)
    normalize(
        size, size // width, given[0].reshape(out.shape), given[1], np.float32(eps), seen(out)
    )
    return out.reshape(shape)


@kernel
def normalize(place, x, gain, eps, out):
    """Write a vector of x (M, H, D), whose last axis is contiguous, to `out`, which is so whole.

    D is a multiple of 16.
    """
    heads, width = x.shape[1:]
    start = (place // heads * x.strides[0] + place % heads * x.strides[1]) // x.itemsize
    scale = splat(unit_scale(x, start, width, eps))
    for index in range(0, width, WIDTH):
        store_rounded(out, place * width + index, gained(x, start, index, scale, gain))


@inlined
def unit_scale(x, start, width, eps):
    """Return what gives the vector that begins at `start` unit root mean square."""
    lanes = splat(np.float32(0))
    for index in range(0, width, WIDTH):
        some = floats(x, start + index)
        lanes = fma(some, some, lanes)
    return np.float32(1) / np.sqrt(total(lanes) / np.float32(width) + eps)


@inlined
def gained(x, start, index, scale, gain):
    """Return sixteen numbers of a vector, scaled, rounded as it is, and with their gains."""
    scaled = rounded_like(x, multiplied(floats(x, start + index), scale))
    return multiplied(scaled, floats(gain, index))
