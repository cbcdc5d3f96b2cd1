"""Rope: pairs of a head's dimensions turned, by cosines and sines that are made once a step."""

from functools import lru_cache

import numpy as np

from lockstep.fast.kernels.again import empty
from lockstep.fast.kernels.alike import alike
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, added, multiplied, subtracted
from lockstep.fast.kernels.memory import floats, seen
from lockstep.fast.kernels.pairs import store_rounded
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.shapes import Array, Frequencies, Positions, Queries


def turned(
    x: Queries, positions: Positions, frequencies: Frequencies, *, factor: float
) -> Queries | None:
    """Turn heads (B, H, L, D) to their positions; None if D / 2 is not in whole lanes of a kind.

    They are float32 or bfloat16, which is rounded at the end.
    """
    given = alike(x)
    if given is None or x.shape[-1] % (2 * WIDTH) or len(positions) != len(x):
        return None
    out = empty(x.shape, x.dtype)
    angles = turns_at(positions, frequencies, factor)
    turn(2 * x.size, x.size // x.shape[-1], *given, angles, seen(out))
    return out


def turns_at(positions: Positions, frequencies: Frequencies, factor: float) -> Array:
    """Return factor * cos and then sin of each position's angles, (2, B, L, D/2)."""
    speeds = np.asarray(frequencies, np.float64)
    known = positions.shape, positions.tobytes(), positions.dtype, speeds.shape, speeds.tobytes()
    return turns(*known, float(factor))


@lru_cache(maxsize=4)  # all layers of a step turn alike; there are two kinds of layers at most
def turns(shape, positions, dtype, widths, frequencies, factor) -> Array:
    """Do it for arrays as bytes."""
    places = np.frombuffer(positions, dtype).reshape(shape)
    speeds = np.frombuffer(frequencies).reshape(widths)
    angles = places[:, :, None] * speeds[..., None, :]
    return np.stack([factor * np.cos(angles), factor * np.sin(angles)]).astype(np.float32)


@kernel
def turn(place, x, turns, out):
    """Write a head of x (B, H, L, D), whose last axis is contiguous, turned, to `out`."""
    heads, length, width = x.shape[1:]
    half = width // 2
    row, head, token = place // (heads * length), place // length % heads, place % length
    start = (row * x.strides[0] + head * x.strides[1] + token * x.strides[2]) // x.itemsize
    for index in range(0, half, WIDTH):
        first, second = floats(x, start + index), floats(x, start + half + index)
        angle = (row * length + token) * half + index
        write_pair(first, second, turns, angle, out, place * width + index, half)


@inlined
def write_pair(first, second, turns, angle, out, to, half):
    """Turn sixteen pairs, and write the halves of each so far apart."""
    cosine, sine = floats(turns, angle), floats(turns, turns.size // 2 + angle)
    low = subtracted(multiplied(first, cosine), multiplied(second, sine))
    high = added(multiplied(first, sine), multiplied(second, cosine))
    store_rounded(out, to, low)
    store_rounded(out, to + half, high)
