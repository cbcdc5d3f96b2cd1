"""Heads of queries and keys, normalised and turned in one start: the same bits as one by one."""

from collections.abc import Sequence

import numpy as np

from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, splat
from lockstep.fast.kernels.normalize import gained, unit_scale
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.rows import BYTES, fitting
from lockstep.fast.kernels.turn import turns_at, write_pair
from lockstep.fast.shapes import Frequencies, Gain, Heads, Keys, Positions, Queries

COST = 4  # times that of a product, a number that is squared, scaled, gained and turned


def normalized_and_turned(
    queries: Heads,
    keys: Heads,
    gains: Sequence[Gain],
    positions: Positions,
    frequencies: Frequencies,
    *,
    eps: float,
    factor: float,
) -> tuple[Queries, Keys] | None:
    """Apply the norms of queries (B, L, H, D) and keys (B, L, G, D), each with its gain, and rope.

    They come back as (B, H, L, D) and (B, G, L, D). None if D / 2 is not float32 in whole lanes.
    """
    batch, length, heads, width = queries.shape
    fits = width % (2 * WIDTH) == 0 and len(positions) == batch
    if not fits or not fitting(queries, keys, *gains):
        return None
    groups = keys.shape[2]
    out = np.empty((batch, heads, length, width), np.float32)
    other = np.empty((batch, groups, length, width), np.float32)
    given = queries, keys, *gains, np.float32(eps), turns_at(positions, frequencies, factor)
    normalize_and_turn(
        COST * (queries.size + keys.size), batch * length * (heads + groups), *given, out, other
    )
    return out, other


@kernel
def normalize_and_turn(place, queries, keys, first, second, eps, turns, out, other):
    """Write a head of queries (B, L, H, D) to `out` (B, H, L, D), or one of keys to `other`.

    `first` and `second` are their gains; the last axis of all arrays is contiguous.
    """
    heads = queries.shape[2]
    token, head = place // (heads + keys.shape[2]), place % (heads + keys.shape[2])
    if head < heads:
        write_head(token, head, queries, first, eps, turns, out)
    else:
        write_head(token, head - heads, keys, second, eps, turns, other)


@inlined
def write_head(token, head, x, gain, eps, turns, out):
    length, heads, width = x.shape[1:]
    half, row, place = width // 2, token // length, token % length
    start = (row * x.strides[0] + place * x.strides[1] + head * x.strides[2]) // BYTES
    to = ((row * heads + head) * length + place) * width
    scale = splat(unit_scale(x, start, width, eps))
    for index in range(0, half, WIDTH):
        low = gained(x, start, index, scale, gain)
        high = gained(x, start, half + index, scale, gain)
        write_pair(low, high, turns, token * half + index, out, to + index, half)
