"""Attention of many new tokens: sixteen queries side by side, and no matrix of scores.

A lane is a query. So a key's number is one scalar for all lanes, maximum and sum of a softmax need
no sum across lanes, and what a query may not see is a lane of minus infinity. Keys and values pass
by in blocks, each of which goes into all queries that see it while it is in the processor's cache;
what a query has of the blocks before is put right whenever its largest score rises.
"""

from collections.abc import Iterator

import numpy as np

from lockstep.fast.kernels.again import empty, zeros
from lockstep.fast.kernels.along_keys import start_of
from lockstep.fast.kernels.attend import in_full, readable
from lockstep.fast.kernels.exponential import exp
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import (
    WIDTH,
    added,
    divided,
    larger,
    multiplied,
    splat,
    subtracted,
)
from lockstep.fast.kernels.memory import floats, seen, store
from lockstep.fast.kernels.online import LEAST, bounds, keep, shared, state_of
from lockstep.fast.kernels.pairs import store_rounded
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.scalar_sums import MANY, summing
from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Keys, Queries, Values

FOUR = 4  # numbers: heads of no whole fours go another way
# Keys that pass by at a time, counted from the first: so chunks of two tokens and more, over
# floats, change no bit.
BLOCK = 512
NEAR = 32  # values that are averaged at a time
NONE_TOLD = np.zeros((0, 0, 0), bool)
begin_sums, begin_sum = summing(MANY, fresh=True), summing(1, fresh=True)
more_sums, more_sum = summing(MANY, fresh=False), summing(1, fresh=False)


def attended(
    queries: Queries, keys: Keys, values: Values, mask: Seen, *, scale: float
) -> Queries | None:
    """Attend with queries (B, H, L, D); None if that is not what is here, or not in float32."""
    rows = readable(queries, keys, values, mask, unit=FOUR)
    if rows is None:
        return None
    averages = Averages(queries.shape, mask, keys.shape[2], scale)
    for start, stop in averages.blocks():
        first, second = (side[:, :, start:stop] for side in rows)
        averages.add(queries, first, second, start)
    return averages.result(queries.dtype)


class Averages:
    """What queries (B, H, L, D) have of the keys and values (B, G, S, D) that passed by so far.

    `sums` of values, weighed by exponentials over the largest score; `known` has that score and the
    sum of the exponentials, (B, H, L, 2).
    """

    def __init__(self, shape: tuple[int, ...], mask: Seen, held: int, scale: float) -> None:
        self.held, self.scale = held, np.float32(scale)
        every = (shape[0], shape[2], held)
        self.seen = in_full(mask.mask[:, 0], every) if mask.kind == "some" else NONE_TOLD
        self.sums = zeros(shape, np.float32)
        self.known = np.zeros((*shape[:3], 2), np.float32)
        self.known[..., 0] = LEAST

    def wanted(self, start: int, stop: int) -> bool:
        """Whether some query may see one of these keys."""
        return not self.seen.size or bool(self.seen[:, :, start:stop].any())

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Go through the blocks of keys, but those that no query sees."""
        for start in range(0, self.held, BLOCK):
            if self.wanted(start, start + BLOCK):
                yield start, start + BLOCK

    def add(self, queries: Queries, keys: Keys, values: Values, before: int) -> None:
        """Let a block pass by, of which the first key is number `before`.

        The last axis of keys and values is contiguous.
        """
        batch, heads, length, _ = queries.shape
        products, blocks = 2 * queries.size * keys.shape[2], -(-length // WIDTH)
        attend_prompt(
            products, batch * heads * blocks, queries, keys, values,
            self.seen, (before, self.held), self.scale, self.sums, self.known,
        )  # fmt: skip

    def result(self, dtype: np.dtype) -> Queries:
        """Return the averages, once all keys have passed by; each query saw one at least.

        NaN where no score that a query saw is above minus infinity, as by NumPy's way. Heads lie
        side by side, as they are merged.
        """
        batch, heads, length, width = self.sums.shape
        out = empty((batch, length, heads, width), dtype)
        divide(2 * out.size, batch * length, self.sums, self.known, seen(out))
        return out.swapaxes(1, 2)


@kernel
def divide(place, sums, known, out):
    """Write the averages of a token's heads, (B, H, L, D), to `out` (B, L, H, D)."""
    heads, length, width = sums.shape[1:]
    row, token = place // length, place % length
    for head in range(heads):
        total = splat(known[row, head, token, 1])
        start = ((row * heads + head) * length + token) * width
        for index in range(0, width // WIDTH * WIDTH, WIDTH):
            at = (place * heads + head) * width + index
            store_rounded(out, at, divided(floats(sums, start + index), total))
        for index in range(width // WIDTH * WIDTH, width):  # float32 alone has such heads
            out[row, token, head, index] = (
                sums[row, head, token, index] / known[row, head, token, 1]
            )


@kernel
def attend_prompt(place, queries, keys, values, seen, span, scale, sums, known):
    """Add a block of keys and values (B, G, S, D) to what sixteen queries of (B, H, L, D) have.

    `span` has the number of the first of them, and how many keys there are in all. `seen` (B, L,
    all) says which keys a query may see; if it is empty, a query sees all keys up to its own, the
    last query's being the last. The last axis of keys and values is contiguous. `sums` and `known`
    are those of `Averages`.
    """
    before, held = span
    heads, length, width = queries.shape[1:]
    blocks = (length + WIDTH - 1) // WIDTH
    row, head = place // (heads * blocks), place // blocks % heads
    group, first = head // (heads // keys.shape[1]), place % blocks * WIDTH
    many, own = min(WIDTH, length - first), held - length + first
    start, stop = before, min(before + keys.shape[2], own + many)  # what some query here sees
    if len(seen):
        start, stop = bounds(seen, row, first, many, before, before + keys.shape[2])
    if start >= stop:
        return
    columns = np.zeros((width, WIDTH), np.float32)
    probs = np.empty((stop - start, WIDTH), np.float32)
    put(queries, row, head, first, many, scale, columns)
    scored(columns, keys, row, group, start - before, probs)
    hide(probs, seen, row, first, many, start, own)
    columns[:] = 0
    if before:
        put(sums, row, head, first, many, np.float32(1), columns)
    weighed(probs, known, row, head, first, many, columns)
    averaged(probs, values, row, group, start - before, columns)
    for one in range(many):
        for index in range(width):
            sums[row, head, first + one, index] = columns[index, one]


@inlined
def put(heads, row, head, first, many, scale, columns):
    """Write sixteen rows of (B, H, L, D) into columns; those of no row stay as they are."""
    for one in range(many):
        for index in range(len(columns)):
            columns[index, one] = heads[row, head, first + one, index] * scale


@inlined
def scored(queries, keys, row, group, begin, scores):
    """Write the products of sixteen queries, which stand in columns, with the keys from `begin`."""
    stride, whole = keys.strides[2] // keys.itemsize, len(scores) // MANY * MANY
    start = start_of(keys, row, group) + begin * stride
    for key in range(0, whole, MANY):
        at = start + key * stride
        begin_sums(queries, len(queries), keys, at, 1, stride, scores, key * WIDTH)
    for key in range(whole, len(scores)):
        at = start + key * stride
        begin_sum(queries, len(queries), keys, at, 1, stride, scores, key * WIDTH)


@inlined
def hide(scores, seen, row, first, many, begin, own):
    """Put minus infinity where a query may not see a key; scores are those of keys from `begin`."""
    if len(seen):
        hide_unseen(scores, seen, row, first, many, begin)
    else:
        hide_later(scores, own - begin)


@inlined
def hide_unseen(scores, seen, row, first, many, begin):
    """Do it as a mask says."""
    for one in range(many):
        for key in range(len(scores)):
            if not seen[row, first + one, begin + key]:
                scores[key, one] = -np.inf


@inlined
def hide_later(scores, own):
    """Do it where a key comes after the query's own; that of the first query is `own`."""
    for key in range(max(0, own + 1), len(scores)):
        for one in range(key - own):
            scores[key, one] = -np.inf


@inlined
def weighed(scores, known, row, head, first, many, columns):
    """Replace scores by their exponentials over a query's largest, and put right what is known.

    The columns of sums are made those over the largest score of all blocks so far.
    """
    state = state_of(known, row, head, first, many)
    top = floats(state, 0)
    for key in range(len(scores)):
        top = larger(floats(scores, key * WIDTH), top)
    share = exp(subtracted(floats(state, 0), top))
    total = multiplied(floats(state, WIDTH), share)
    for key in range(len(scores)):
        some = exp(subtracted(floats(scores, key * WIDTH), top))
        store(scores, key * WIDTH, some)
        total = added(total, some)
    for index in range(len(columns)):
        store(columns, index * WIDTH, shared(floats(columns, index * WIDTH), share))
    store(state, 0, top)
    store(state, WIDTH, total)
    keep(state, known, row, head, first, many)


@inlined
def averaged(probs, values, row, group, begin, out):
    """Add the values from `begin`, weighed by `probs`, to a column for each query.

    Some values are added to all columns before the next come: so they stay in the first cache.
    """
    stride, whole = values.strides[2] // values.itemsize, len(out) // MANY * MANY
    start = start_of(values, row, group) + begin * stride
    for key in range(0, len(probs), NEAR):
        some, many, at = probs[key:], min(NEAR, len(probs) - key), start + key * stride
        for index in range(0, whole, MANY):
            more_sums(some, many, values, at + index, stride, 1, out, index * WIDTH)
        for index in range(whole, len(out)):
            more_sum(some, many, values, at + index, stride, 1, out, index * WIDTH)
