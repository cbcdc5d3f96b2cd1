"""Vectors scaled to unit root mean square and by a gain, each in two passes."""

import numpy as np

from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, fma, multiplied, splat, total
from lockstep.fast.kernels.memory import floats, store
from lockstep.fast.kernels.rows import BYTES, fitting
from lockstep.fast.shapes import Gain, Hidden


def normalized(x: Hidden, gain: Gain, *, eps: float) -> Hidden | None:
    """Normalise the vectors along the last axis; None if they are not float32 in whole lanes."""
    if not fitting(x, gain):
        return None
    width = x.shape[-1]
    heads = x.shape[-2] if x.ndim > 3 else 1
    out = np.empty(x.shape, np.float32)
    shape = (x.size // (heads * width), heads, width)
    normalize(x.size, x.size // width, x.reshape(shape), gain, np.float32(eps), out.reshape(shape))
    return out


@kernel
def normalize(place, x, gain, eps, out):
    """Write a vector of x (M, H, D), whose last axis is contiguous, to `out`, which is so whole.

    D is a multiple of 16.
    """
    heads, width = x.shape[1:]
    start = (place // heads * x.strides[0] + place % heads * x.strides[1]) // BYTES
    lanes = splat(np.float32(0))
    for index in range(0, width, WIDTH):
        some = floats(x, start + index)
        lanes = fma(some, some, lanes)
    root = np.float32(1) / np.sqrt(total(lanes) / np.float32(width) + eps)
    for index in range(0, width, WIDTH):
        some = multiplied(floats(x, start + index), splat(root))
        store(out, place * width + index, multiplied(some, floats(gain, index)))
