"""Rope: pairs of a head's dimensions turned, by cosines and sines that are made once a step."""

from functools import lru_cache

import numpy as np

from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, added, multiplied, subtracted
from lockstep.fast.kernels.memory import floats, store
from lockstep.fast.kernels.rows import BYTES, fitting
from lockstep.fast.shapes import Array, Frequencies, Positions, Queries


def turned(
    x: Queries, positions: Positions, frequencies: Frequencies, *, factor: float
) -> Queries | None:
    """Turn heads (B, H, L, D) to their positions; None if D / 2 is not float32 in whole lanes."""
    if not fitting(x) or x.shape[-1] % (2 * WIDTH) or len(positions) != len(x):
        return None
    speeds = np.asarray(frequencies, np.float64)
    known = positions.shape, positions.tobytes(), positions.dtype, speeds.shape, speeds.tobytes()
    cosines, sines = turns(*known, float(factor))
    out = np.empty(x.shape, np.float32)
    turn(2 * x.size, x.size // x.shape[-1], x, cosines, sines, out)
    return out


@lru_cache(maxsize=4)  # all layers of a step turn alike; there are two kinds of layers at most
def turns(shape, positions, dtype, widths, frequencies, factor) -> tuple[Array, Array]:
    """Return factor * cos and sin of each position's angles, (B, L, D/2), from arrays as bytes."""
    places = np.frombuffer(positions, dtype).reshape(shape)
    speeds = np.frombuffer(frequencies).reshape(widths)
    angles = places[:, :, None] * speeds[..., None, :]
    return tuple((factor * part(angles)).astype(np.float32) for part in (np.cos, np.sin))


@kernel
def turn(place, x, cosines, sines, out):
    """Write a head of x (B, H, L, D), whose last axis is contiguous, turned, to `out`."""
    heads, length, width = x.shape[1:]
    half = width // 2
    row, head, token = place // (heads * length), place // length % heads, place % length
    start = (row * x.strides[0] + head * x.strides[1] + token * x.strides[2]) // BYTES
    angle = (row * length + token) * half
    for index in range(0, half, WIDTH):
        first, second = floats(x, start + index), floats(x, start + half + index)
        cosine, sine = floats(cosines, angle + index), floats(sines, angle + index)
        to = place * width + index
        low = subtracted(multiplied(first, cosine), multiplied(second, sine))
        high = added(multiplied(first, sine), multiplied(second, cosine))
        store(out, to, low)
        store(out, to + half, high)
