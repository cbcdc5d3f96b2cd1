"""Attention of many new tokens in bfloat16 by the matrix unit: 32 queries with blocks of 32 keys.

Queries are the columns of both products, so that a softmax needs no sum across lanes. Numbers are
multiplied as they are, and probabilities as the sum of two such terms.
"""

import ml_dtypes
import numpy as np

from lockstep.fast.kernels import by_tiles
from lockstep.fast.kernels.attend import lying, readable
from lockstep.fast.kernels.attend_laid import lay_keys, lay_queries
from lockstep.fast.kernels.attend_prompt import Averages, hide
from lockstep.fast.kernels.by_digits import on_a_line
from lockstep.fast.kernels.by_tiles import COLUMNS
from lockstep.fast.kernels.exponential import exp
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, added, larger, multiplied, splat, subtracted
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.matrix_unit import DEEP, WIDE, leave_tiles
from lockstep.fast.kernels.memory import floats, seen, store
from lockstep.fast.kernels.online import bounds, keep, shared, state_of
from lockstep.fast.kernels.pair_tiles import BOTH, OF_SHARES, multiplying, store_shares, take_tiles
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.tile import CELL, PAIR, turned
from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Array, Keys, Queries, Values

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NEAR = 4  # steps of 32 keys, whose probabilities stay in the first cache
begin_scores = multiplying(1, PAIR, fresh=True)
begin_sums, more_sums = (multiplying(OF_SHARES, PAIR, fresh=fresh) for fresh in (True, False))


def attended(
    queries: Queries, keys: Keys, values: Values, mask: Seen, *, scale: float
) -> Queries | None:
    """Attend with queries (B, H, L, D), all in bfloat16.

    None if that is not what is here, if there is no unit for it, or if something is not finite or
    too small for it.
    """
    if queries.dtype != BFLOAT16 or not by_tiles.fits(queries.shape[3]):
        return None
    rows = readable(queries, keys, values, mask, unit=COLUMNS, kind=BFLOAT16)
    asked = None if rows is None else lay_queries(seen(lying(queries)))
    if rows is None or asked is None:
        return None
    averages = Averages(queries.shape, mask, keys.shape[2], scale)
    for start, stop in averages.blocks():
        first, second = (seen(side[:, :, start:stop]) for side in rows)
        laid = lay_keys(first, second)
        if laid is None:
            return None
        add(averages, asked, *laid, (start, first.shape[2], averages.held))
    return averages.result(BFLOAT16)


def add(
    averages: Averages, queries: Array, keys: Array, values: Array, span: tuple[int, int, int]
) -> None:
    """Let a block of keys pass by, all laid out. `span` is as in `attend_tiles`."""
    products, places = 2 * averages.sums.size * span[1], queries[..., 0].size
    attend_tiles(
        products, places, queries, keys, values,
        averages.seen, span, averages.scale, averages.sums, averages.known,
    )  # fmt: skip


@kernel
def attend_tiles(place, queries, keys, values, seen, span, scale, sums, known):
    """Add a block of keys and values to what 32 queries of a head have.

    `span` has the number of the first of these keys, how many they are, and how many keys there are
    in all. The rest is as in `attend_prompt`.
    """
    heads, blocks = queries.shape[1:3]
    row, head, first = place // (heads * blocks), place // blocks % heads, place % blocks * ROWS
    group, length = head // (heads // keys.shape[1]), sums.shape[2]
    many, own = min(ROWS, length - first), span[2] - length + first
    begin, end, count = looked_at(seen, row, first, many, own, span)
    if begin >= end:
        return
    scores = on_a_line((end - begin) * ROWS * ROWS * 4).view(np.float32).reshape(-1, ROWS)
    take_tiles()
    put_scores(keys[row, group], begin, end, queries[row, head, first // ROWS], scale, scores)
    hide(scores[:count], seen, row, first, many, span[0] + begin * ROWS, own)
    scores[count:] = -np.inf
    probs, shares = on_a_line(OF_SHARES * len(scores) * WIDE), np.empty(ROWS, np.float32)
    for half in range(PAIR):
        weigh(scores, half, known, row, head, first, many, probs, shares)
    piece = on_a_line(sums.shape[3] * ROWS * 4)
    put_sums(values[row, group], begin, end, probs, piece.view(np.float32))
    leave_tiles()
    put_averages(piece, shares, sums, row, head, first, many)


@inlined
def looked_at(seen, row, first, many, own, span):
    """Return which blocks of 32 keys some query here sees, and how many keys of them at most.

    These begin where a sum of some blocks does, counted from the first key: so what else stands
    among the 32 queries changes no bit.
    """
    before, count, _ = span
    start, stop = before, min(before + count, own + many)
    if len(seen):
        start, stop = bounds(seen, row, first, many, before, before + count)
    if start >= stop:
        return 0, 0, 0
    begin, end = (start - before) // (ROWS * NEAR) * NEAR, (stop - before + ROWS - 1) // ROWS
    return begin, end, stop - before - begin * ROWS


@inlined
def put_scores(keys, begin, end, queries, scale, scores):
    """Write the products of blocks of keys with 32 queries, and scale them."""
    steps = keys.shape[1]
    for block in range(begin, end):
        at, to = block * steps * BOTH, (block - begin) * ROWS * ROWS
        begin_scores(keys, at, queries, 0, 0, steps, scores, to)
        for index in range(to, to + ROWS * ROWS, WIDTH):
            store(scores, index, multiplied(floats(scores, index), splat(scale)))


@inlined
def weigh(scores, half, known, row, head, first, many, probs, shares):
    """Write exponentials over a query's largest score to `probs`, pairs of keys side by side.

    What is known is put right, and so must be what is summed of blocks before: by `shares`.
    """
    here, rest = first + half * WIDTH, min(WIDTH, many - half * WIDTH)
    state = state_of(known, row, head, here, rest)
    top = floats(state, 0)
    for key in range(len(scores)):
        top = larger(floats(scores, key * ROWS + half * WIDTH), top)
    share = exp(subtracted(floats(state, 0), top))
    total = multiplied(floats(state, WIDTH), share)
    cells, apart = probs.view(np.int32), len(scores) * WIDTH
    for key in range(0, len(scores), 2):
        at = key * ROWS + half * WIDTH
        one = exp(subtracted(floats(scores, at), top))
        other = exp(subtracted(floats(scores, at + ROWS), top))
        total = added(added(total, one), other)
        store_shares(cells, key // 2 * ROWS + half * WIDTH, apart, one, other)
    store(shares, half * WIDTH, share)
    store(state, 0, top)
    store(state, WIDTH, total)
    keep(state, known, row, head, here, rest)


@inlined
def put_sums(values, begin, end, probs, out):
    """Write the sums (D, 32) of values for 32 queries, some blocks of 32 values at a time."""
    parts, blocks = values.shape[:2]
    apart = (end - begin) * BOTH
    for block in range(begin, end, NEAR):
        near, weight = min(NEAR, end - block), (block - begin) * BOTH
        for part in range(parts):
            at, to = (part * blocks + block) * BOTH, part * ROWS * ROWS
            if block == begin:
                begin_sums(values, at, probs, weight, apart, near, out, to)
            else:
                more_sums(values, at, probs, weight, apart, near, out, to)


@inlined
def put_averages(piece, shares, sums, row, head, first, many):
    """Add what is summed (D, 32 queries) to the sums of these queries, which `shares` put right."""
    heads, length, width = sums.shape[1:]
    room = on_a_line(ROWS * ROWS * 4)
    some, to = room.view(np.float32), ((row * heads + head) * length + first) * width
    for index in range(0, width, COLUMNS):
        for half in range(PAIR):
            for one in range(0, many, CELL):
                at = (index + half * DEEP) * ROWS * 4 + one * 4
                turned(piece, at, ROWS * 4, room, one * ROWS * 4 + half * WIDE)
        for one in range(many):
            share = splat(shares[one])
            for half in range(0, COLUMNS, WIDTH):
                at = to + one * width + index + half
                more = floats(some, one * COLUMNS + half)
                store(sums, at, added(shared(floats(sums, at), share), more))
