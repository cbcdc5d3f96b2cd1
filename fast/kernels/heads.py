"""Heads of queries and keys, normalised and turned in one start: the same bits as one by one."""

from collections.abc import Sequence

import numpy as np

from lockstep.fast.kernels.again import empty
from lockstep.fast.kernels.alike import alike
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, splat
from lockstep.fast.kernels.memory import seen
from lockstep.fast.kernels.normalize import gained, unit_scale
from lockstep.fast.kernels.pairs import rounded_like
from lockstep.fast.kernels.parts import inlined
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

    They come back as (B, H, L, D) and (B, G, L, D). None if D / 2 is not in whole lanes, or all are
    neither float32 nor bfloat16, which is rounded between the two as well.
    """
    batch, length, heads, width = queries.shape
    fits = width % (2 * WIDTH) == 0 and len(positions) == batch
    given = alike(queries, keys, *gains) if fits else None
    if given is None:
        return None
    groups = keys.shape[2]
    out = empty((batch, heads, length, width), queries.dtype)
    other = empty((batch, groups, length, width), queries.dtype)
    given += [np.float32(eps), turns_at(positions, frequencies, factor), seen(out), seen(other)]
    products = COST * (queries.size + keys.size)
    normalize_and_turn(products, batch * length * (heads + groups), *given)
    return out, other


@kernel
def normalize_and_turn(place, queries, keys, first, second, eps, turns, out, other):
    """Write a head of queries (B, L, H, D) to `out` (B, H, L, D), or one of keys to `other`.

    A head's tokens are neighbouring places, as they lie in what is written: a core that wrote to
    all heads in turn, half a megabyte apart, would wait for memory at each.
    `first` and `second` are their gains; the last axis of all arrays is contiguous.
    """
    heads, tokens = queries.shape[2], queries.shape[0] * queries.shape[1]
    head, token = place // tokens, place % tokens
    if head < heads:
        write_head(token, head, queries, first, eps, turns, out)
    else:
        write_head(token, head - heads, keys, second, eps, turns, other)


@inlined
def write_head(token, head, x, gain, eps, turns, out):
    length, heads, width = x.shape[1:]
    half, row, place = width // 2, token // length, token % length
    start = (row * x.strides[0] + place * x.strides[1] + head * x.strides[2]) // x.itemsize
    to = ((row * heads + head) * length + place) * width
    scale = splat(unit_scale(x, start, width, eps))
    for index in range(0, half, WIDTH):
        low = rounded_like(x, gained(x, start, index, scale, gain))
        high = rounded_like(x, gained(x, start, half + index, scale, gain))
        write_pair(low, high, turns, token * half + index, out, to + index, half)
