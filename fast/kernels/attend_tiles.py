"""Attention of many new tokens by the matrix unit: 32 queries of a head with a block of keys.

Queries are the columns of both products, so that a softmax needs no sum across lanes. bfloat16
numbers are multiplied as they are; probabilities are cut into two terms of such, and what is
float32 into three, of which products smaller than those with a last term are left out.
"""

import numpy as np

from lockstep.fast.kernels import by_tiles
from lockstep.fast.kernels.attend_laid import terms_of
from lockstep.fast.kernels.by_digits import on_a_line
from lockstep.fast.kernels.by_tiles import COLUMNS
from lockstep.fast.kernels.exponential import exp
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import (
    WIDTH,
    added,
    larger,
    multiplied,
    splat,
    subtracted,
    where_below,
)
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.matrix_unit import DEEP, WIDE, leave_tiles
from lockstep.fast.kernels.memory import floats, store
from lockstep.fast.kernels.online import bounds, shared
from lockstep.fast.kernels.pair_tiles import (
    BOTH,
    multiplying,
    store_pairs,
    take_tiles,
    weighty,
)
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.tile import CELL, PAIR, turned
from lockstep.fast.shapes import Array

scores_of_floats = multiplying(weighty(3, 3), fresh=True)
scores_of_halves = multiplying(weighty(1, 1), fresh=True)
more_of_floats = multiplying(weighty(3, 3), fresh=False)
sums_of_halves = multiplying(weighty(1, 2), fresh=True)
more_of_halves = multiplying(weighty(1, 2), fresh=False)
NEAR = 4  # steps of 32 keys, whose probabilities stay in the first cache
LANES = np.arange(WIDTH, dtype=np.float32)
fits = by_tiles.fits


def add(
    laid: tuple[Array, Array, Array], kind: Array, seen: Array, span: tuple[int, int, int],
    scale: np.float32, sums: Array, known: Array,
) -> None:  # fmt: skip
    """Let a block of keys pass by. `span` has the number of the first, how many these are, and all.

    The rest is as in `attend_prompt`.
    """
    batch, heads, length, _ = sums.shape
    blocks = -(-length // ROWS)
    products, places = 2 * sums.size * span[1], batch * heads * blocks
    attend_tiles(products, places, terms_of(kind), laid, seen, span, scale, sums, known)


@kernel
def attend_tiles(place, terms, laid, seen, span, scale, sums, known):
    """Add a block of keys and values to what 32 queries of a head have."""
    queries, keys, values = laid
    before, count, held = span
    heads, length, width = sums.shape[1:]
    blocks = queries.shape[2]
    row, head, block = place // (heads * blocks), place // blocks % heads, place % blocks
    group, first = head // (heads // keys.shape[1]), block * ROWS
    many, own = min(ROWS, length - first), held - length + first
    start, stop = before, min(before + count, own + many)  # what some query here sees
    if len(seen):
        start, stop = bounds(seen, row, first, many, before, before + count)
    if start >= stop:
        return
    begin, end = (start - before) // ROWS, (stop - before + ROWS - 1) // ROWS
    size = (end - begin) * ROWS
    scores = on_a_line(size * ROWS * 4).view(np.float32).reshape(size, ROWS)
    probs = on_a_line(terms[1].terms * size * WIDE)
    piece, shares = on_a_line(width * ROWS * 4), np.empty(ROWS, np.float32)
    take_tiles()
    put_scores(terms[0], keys[row, group], begin, end, queries[row, head, block], scores)
    if len(seen):
        hide(scores, scale, seen, row, first, many, before + begin * ROWS)
    else:
        hide_later(scores, scale, own - before - begin * ROWS)
    scores[max(0, count - begin * ROWS) :] = -np.inf
    for half in range(PAIR):
        at = row, head, first + half * WIDTH
        weigh(terms[1], scores, half, known, at, many - half * WIDTH, probs, shares)
    put_sums(terms[0], values[row, group], begin, end, probs, piece.view(np.float32))
    leave_tiles()
    put_averages(piece, shares, sums, ((row * heads + head) * length + first) * width, many, width)


@inlined
def put_scores(of, keys, begin, end, queries, scores):
    """Write the products of blocks of 32 keys with 32 queries."""
    terms, octets = queries.shape
    steps = octets // BOTH
    for some in range(begin, end):
        at, to = some * terms * octets, (some - begin) * ROWS * ROWS
        if of.terms == 1:
            scores_of_halves(keys, at, octets, queries, 0, octets, steps, scores, to)
        else:
            scores_of_floats(keys, at, octets, queries, 0, octets, steps, scores, to)


@inlined
def put_sums(of, values, begin, end, probs, out):
    """Write the sums (D, 32) of values for 32 queries, some blocks of 32 values at a time."""
    parts, blocks = values.shape[1:3]
    apart, another = parts * blocks * BOTH, (end - begin) * BOTH
    for some in range(begin, end, NEAR):
        near, weight = min(NEAR, end - some), (some - begin) * BOTH
        for part in range(parts):
            at, to = (part * blocks + some) * BOTH, part * ROWS * ROWS
            if of.terms == 1 and some == begin:
                sums_of_halves(values, at, apart, probs, weight, another, near, out, to)
            elif of.terms == 1:
                more_of_halves(values, at, apart, probs, weight, another, near, out, to)
            elif some == begin:
                scores_of_floats(values, at, apart, probs, weight, another, near, out, to)
            else:
                more_of_floats(values, at, apart, probs, weight, another, near, out, to)


@inlined
def hide(scores, scale, seen, row, first, many, begin):
    """Scale, and put minus infinity where a query may not see a key."""
    for index in range(0, scores.size, WIDTH):
        store(scores, index, multiplied(floats(scores, index), splat(scale)))
    for one in range(many):
        for key in range(min(len(scores), seen.shape[2] - begin)):
            if not seen[row, first + one, begin + key]:
                scores[key, one] = -np.inf


@inlined
def hide_later(scores, scale, own):
    """Scale, and put minus infinity where a key comes after a query's own; `own` is the first's."""
    lanes, never = floats(LANES, 0), splat(-np.float32(np.inf))
    for key in range(len(scores)):
        for half in range(PAIR):
            at = key * ROWS + half * WIDTH
            some = multiplied(floats(scores, at), splat(scale))
            if key > own + half * WIDTH:
                some = where_below(lanes, np.float32(key - own - half * WIDTH), never, some)
            store(scores, at, some)


@inlined
def weigh(of, scores, half, known, at, many, probs, shares):
    """Write exponentials over a query's largest score to `probs`, pairs of keys side by side.

    What is known is put right, and so must be what is summed of blocks before: by `shares`.
    """
    row, head, first = at
    state = np.zeros((2, WIDTH), np.float32)
    for one in range(min(many, WIDTH)):
        state[0, one] = known[row, head, first + one, 0]
        state[1, one] = known[row, head, first + one, 1]
    top = floats(state, 0)
    for key in range(len(scores)):
        top = larger(floats(scores, key * ROWS + half * WIDTH), top)
    share = exp(subtracted(floats(state, 0), top))
    total = multiplied(floats(state, WIDTH), share)
    cells, apart = probs.view(np.int32), len(scores) * WIDTH
    for key in range(0, len(scores), 2):
        at_key = key * ROWS + half * WIDTH
        one = exp(subtracted(floats(scores, at_key), top))
        other = exp(subtracted(floats(scores, at_key + ROWS), top))
        total = added(added(total, one), other)
        store_pairs(of, cells, key // 2 * ROWS + half * WIDTH, apart, one, other)
    store(shares, half * WIDTH, share)
    store(state, 0, top)
    store(state, WIDTH, total)
    for one in range(min(many, WIDTH)):
        known[row, head, first + one, 0] = state[0, one]
        known[row, head, first + one, 1] = state[1, one]


@inlined
def put_averages(piece, shares, sums, to, many, width):
    """Add what is summed (D, 32 queries) to the sums of these queries, which `shares` put right."""
    room = on_a_line(ROWS * ROWS * 4)
    some = room.view(np.float32)
    for index in range(0, width, COLUMNS):
        for half in range(PAIR):
            for one in range(0, ROWS, CELL):
                at = (index + half * DEEP) * ROWS * 4 + one * 4
                turned(piece, at, ROWS * 4, room, one * ROWS * 4 + half * WIDE)
        for one in range(many):
            share = splat(shares[one])
            for half in range(0, COLUMNS, WIDTH):
                at = to + one * width + index + half
                more = floats(some, one * COLUMNS + half)
                store(sums, at, added(shared(floats(sums, at), share), more))
