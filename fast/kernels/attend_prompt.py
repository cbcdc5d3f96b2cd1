"""Attention of many new tokens: sixteen queries side by side, and no matrix of scores.

A lane is a query. So a key's number is one scalar for all lanes, maximum and sum of a softmax need
no sum across lanes, and what a query may not see is a lane of minus infinity.
"""

import numpy as np

from lockstep.fast.kernels.attend import readable, start_of
from lockstep.fast.kernels.exponential import exp
from lockstep.fast.kernels.kernel import inlined, kernel
from lockstep.fast.kernels.lanes import WIDTH, added, divided, fma, larger, splat, subtracted
from lockstep.fast.kernels.memory import floats, scalar, store
from lockstep.fast.kernels.rows import BYTES
from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Keys, Queries, Values

FOUR = 4  # keys, or numbers of a head, that one look at the queries or weights serves
LEAST = np.float32(np.finfo(np.float32).min)  # in place of -inf, from which nothing is taken away
NONE_TOLD = np.zeros((0, 0, 0), bool)


def attended(
    queries: Queries, keys: Keys, values: Values, mask: Seen, *, scale: float
) -> Queries | None:
    """Attend with queries (B, H, L, D); None if that is not what is here, or not in float32."""
    batch, heads, length, _ = queries.shape
    rows = readable(queries, keys, values, mask, unit=FOUR)
    if rows is None:
        return None
    told = mask.kind == "some"
    seen = np.ascontiguousarray(mask.mask[:, 0]) if told else NONE_TOLD
    blocks = -(-length // WIDTH)
    out = np.empty(queries.shape, np.float32)
    products = 2 * queries.size * keys.shape[2]
    places = batch * heads * blocks
    attend_prompt(products, places, queries, *rows, seen, np.float32(scale), out)
    return out


@kernel
def attend_prompt(place, queries, keys, values, seen, scale, out):
    """Write the context of sixteen queries of (B, H, L, D) over keys and values (B, G, S, D).

    `seen` (B, L, S) says which keys a query may see, one at least; if it is empty, a query sees all
    keys up to its own, the last query's being the last. The last axis of keys and values is
    contiguous.
    """
    heads, length, width = queries.shape[1:]
    blocks = (length + WIDTH - 1) // WIDTH
    row, head = place // (heads * blocks), place // blocks % heads
    group, first = head // (heads // keys.shape[1]), place % blocks * WIDTH
    many, held = min(WIDTH, length - first), keys.shape[2]
    told = len(seen) > 0
    start, stop = 0, held - length + first + many  # the keys that some query here sees
    if told:
        start, stop = bounds(seen, row, first, many)
    turned = np.zeros((width, WIDTH), np.float32)
    probs = np.empty((stop - start, WIDTH), np.float32)
    for one in range(many):
        for index in range(width):
            turned[index, one] = queries[row, head, first + one, index] * scale
    scored(turned, keys, row, group, start, probs)
    if told:
        hide(probs, seen, row, first, many, start)
    else:
        hide_later(probs, held - length + first)
    total = weighed(probs)
    averaged(probs, values, row, group, start, turned)
    for index in range(width):
        store(turned, index * WIDTH, divided(floats(turned, index * WIDTH), total))
    for one in range(many):
        for index in range(width):
            out[row, head, first + one, index] = turned[index, one]


@inlined
def bounds(seen, row, first, many):
    """Return the first key that some query sees, and the one behind the last."""
    start, stop = seen.shape[2], 0
    for one in range(first, first + many):
        low, high = 0, seen.shape[2]
        while low < start and not seen[row, one, low]:
            low += 1
        while high > stop and not seen[row, one, high - 1]:
            high -= 1
        start, stop = min(start, low), max(stop, high)
    return start, stop


@inlined
def scored(queries, keys, row, group, begin, scores):
    """Write the products of sixteen queries, which stand in columns, with the keys from `begin`."""
    stride, whole = keys.strides[2] // BYTES, len(scores) // FOUR * FOUR
    start = start_of(keys, row, group) + begin * stride
    for key in range(0, whole, FOUR):
        at = start + key * stride
        a = b = c = d = splat(np.float32(0))
        for index in range(len(queries)):
            query = floats(queries, index * WIDTH)
            a = fma(query, splat(scalar(keys, at + index)), a)
            b = fma(query, splat(scalar(keys, at + stride + index)), b)
            c = fma(query, splat(scalar(keys, at + 2 * stride + index)), c)
            d = fma(query, splat(scalar(keys, at + 3 * stride + index)), d)
        store(scores, key * WIDTH, a)
        store(scores, (key + 1) * WIDTH, b)
        store(scores, (key + 2) * WIDTH, c)
        store(scores, (key + 3) * WIDTH, d)
    for key in range(whole, len(scores)):
        lanes = splat(np.float32(0))
        for index in range(len(queries)):
            number = scalar(keys, start + key * stride + index)
            lanes = fma(floats(queries, index * WIDTH), splat(number), lanes)
        store(scores, key * WIDTH, lanes)


@inlined
def hide(scores, seen, row, first, many, begin):
    """Put minus infinity where a query may not see a key."""
    for one in range(many):
        for key in range(len(scores)):
            if not seen[row, first + one, begin + key]:
                scores[key, one] = -np.inf


@inlined
def hide_later(scores, own):
    """Put minus infinity where a key comes after the query's own; that of the first is `own`."""
    for key in range(own + 1, len(scores)):
        for one in range(key - own):
            scores[key, one] = -np.inf


@inlined
def weighed(scores):
    """Replace scores by their exponentials over a query's largest; return the sums of these."""
    top, sums = splat(LEAST), splat(np.float32(0))
    for key in range(len(scores)):
        top = larger(floats(scores, key * WIDTH), top)
    for key in range(len(scores)):
        some = exp(subtracted(floats(scores, key * WIDTH), top))
        store(scores, key * WIDTH, some)
        sums = added(sums, some)
    return sums


@inlined
def averaged(probs, values, row, group, begin, out):
    """Write the sums of values from `begin` weighted by `probs`, a column for each query."""
    stride = values.strides[2] // BYTES
    start = start_of(values, row, group) + begin * stride
    for index in range(0, len(out), FOUR):
        a = b = c = d = splat(np.float32(0))
        for key in range(len(probs)):
            prob, at = floats(probs, key * WIDTH), start + key * stride + index
            a = fma(prob, splat(scalar(values, at)), a)
            b = fma(prob, splat(scalar(values, at + 1)), b)
            c = fma(prob, splat(scalar(values, at + 2)), c)
            d = fma(prob, splat(scalar(values, at + 3)), d)
        store(out, index * WIDTH, a)
        store(out, (index + 1) * WIDTH, b)
        store(out, (index + 2) * WIDTH, c)
        store(out, (index + 3) * WIDTH, d)
