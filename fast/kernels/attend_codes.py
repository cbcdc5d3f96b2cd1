"""Attention of a few new tokens over codes: each is read once for all queries of its group.

Nothing is decoded into memory but a row at a time. What the codes mean is a format's business
(`formats`); where they are still turned, so must their queries be, and the result be turned back.
"""

import numpy as np

from lockstep.fast.caches.held_codes import FEW, HeldCodes
from lockstep.fast.kernels.along_keys import start_of
from lockstep.fast.kernels.attend import weighed
from lockstep.fast.kernels.code_rows import answered, asked, recent, stored, together
from lockstep.fast.kernels.kernel import kernel, usable
from lockstep.fast.kernels.lanes import WIDTH, fma, splat, total
from lockstep.fast.kernels.memory import floats, store
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.weights import weights
from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Queries


def attended(
    queries: Queries, keys: HeldCodes, values: HeldCodes, mask: Seen, *, scale: float
) -> Queries | None:
    """Attend with a few queries (B, H, L, D); None if that is not what is here, or not in float32.

    TurboQuant's keys are compared as they are, turned: <R q, R k> is <q, k>.
    """
    batch, heads, length, width = queries.shape
    fits = length <= FEW and together(queries, keys, values, unit=WIDTH)
    if not fits or mask.blind or not usable():
        return None
    if queries.dtype != np.float32 or keys.like.dtype != np.float32:
        return None
    sides = stored(keys), stored(values)
    if sides[0] is None or sides[1] is None or sides[0].room != sides[1].room:
        return None
    plain = np.ascontiguousarray(queries) * np.float32(scale)
    seen = np.broadcast_to(mask.mask[:, 0], (batch, length, keys.shape[2])).copy()
    out = tuple(np.empty(queries.shape, np.float32) for _ in range(2))
    products = 2 * batch * heads * length * seen.shape[2] * width
    attend_codes(
        products, batch * keys.shape[1], (sides[0].of, sides[1].of),
        (asked(plain, keys, sides[0].parts), plain), sides[0].matrix, sides[1].matrix,
        (recent(keys), recent(values)), seen, sides[0].room, out,
    )  # fmt: skip
    return answered(out[0], values, sides[1].parts) + out[1]


@kernel
def attend_codes(pair, of, queries, keys, values, recent, seen, room, out):
    """Write the context of queries over codes, and over what is none, to the two of `out`.

    `of`, `keys` and `values` are the formats and matrices of codes, whose row of token j of pair p
    of a text and a group is p * room + j. Of the `queries` the first (B, H, L, W) are for the codes
    and the second (B, H, L, D) for the `recent` keys and values (B, G, R, D). All are scaled.
    `seen` (B, L, S) says which keys a query may see, those of codes first; it sees one at least.
    """
    turned, plain = queries
    groups, late, held = recent[0].shape[1], recent[0].shape[2], seen.shape[2]
    many = plain.shape[1] // groups * plain.shape[2]  # queries that share keys
    space = (held + WIDTH - 1) // WIDTH * WIDTH
    row, group, first = pair // groups, pair % groups, pair * many
    probs = np.full((many, space), -np.inf, np.float32)
    scored_codes(of[0], keys, turned, probs, seen, row, pair * room, held - late, first)
    scored_plain(recent[0], plain, probs, seen, row, group, held - late, first)
    for one in range(many):
        share = np.float32(1) / weighed(probs[one])
        for key in range(held):
            probs[one, key] *= share
    averaged_codes(of[1], values, probs, seen, row, pair * room, held - late, out[0], first)
    averaged_plain(recent[1], probs, seen, row, group, held - late, out[1], first)


@inlined
def scored_codes(of, matrix, queries, probs, seen, row, start, count, first):
    """Write the products of the queries of a group with what codes say."""
    width = queries.shape[3]
    tile = np.empty(width, np.float32)
    for key in range(count):
        if some_see(seen, row, key):
            unpacked(of, matrix, start + key, tile)
            for one in range(len(probs)):
                if seen[row, one % seen.shape[1], key]:
                    probs[one, key] = product(queries, (first + one) * width, tile, 0, width)


@inlined
def scored_plain(keys, queries, probs, seen, row, group, before, first):
    """Write the products of the queries of a group with keys that are no codes."""
    width, start = queries.shape[3], start_of(keys, row, group)
    for key in range(keys.shape[2]):
        place = start + key * (keys.strides[2] // keys.itemsize)
        for one in range(len(probs)):
            if seen[row, one % seen.shape[1], before + key]:
                at = (first + one) * width
                probs[one, before + key] = product(queries, at, keys, place, width)


@inlined
def some_see(seen, row, key):
    some = False
    for query in range(seen.shape[1]):
        some |= seen[row, query, key]
    return some


@inlined
def unpacked(of, matrix, row, tile):
    """Write the numbers of one row of codes."""
    for group in range(len(tile) // of.group):
        for index in range(of.group // WIDTH):
            store(tile, group * of.group + index * WIDTH, weights(of, matrix, row, group, index))


@inlined
def product(left, at, right, place, width):
    lanes = splat(np.float32(0))
    for index in range(0, width, WIDTH):
        lanes = fma(floats(left, at + index), floats(right, place + index), lanes)
    return total(lanes)


@inlined
def averaged_codes(of, matrix, probs, seen, row, start, count, out, first):
    """Write the average of what codes say, for each query of a group."""
    width = out.shape[3]
    tile = np.empty(width, np.float32)
    clear(out, first * width, len(probs) * width)
    for key in range(count):
        if some_see(seen, row, key):
            unpacked(of, matrix, start + key, tile)
            for one in range(len(probs)):
                if seen[row, one % seen.shape[1], key]:
                    add(out, (first + one) * width, probs[one, key], tile, 0, width)


@inlined
def averaged_plain(values, probs, seen, row, group, before, out, first):
    """Write the average of values that are no codes, for each query of a group."""
    width, start = out.shape[3], start_of(values, row, group)
    clear(out, first * width, len(probs) * width)
    for key in range(values.shape[2]):
        place = start + key * (values.strides[2] // values.itemsize)
        for one in range(len(probs)):
            if seen[row, one % seen.shape[1], before + key]:
                add(out, (first + one) * width, probs[one, before + key], values, place, width)


@inlined
def clear(out, start, count):
    for index in range(0, count, WIDTH):
        store(out, start + index, splat(np.float32(0)))


@inlined
def add(out, at, weight, values, place, width):
    for index in range(0, width, WIDTH):
        some = fma(splat(weight), floats(values, place + index), floats(out, at + index))
        store(out, at + index, some)
