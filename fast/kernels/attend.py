"""Attention of one new token a row over all that the cache holds: no matrix of scores, no copy.

Heads that share keys go along them together: each key and value is read from memory once.
"""

import numpy as np

from lockstep.fast.kernels.along_keys import averaged, scored
from lockstep.fast.kernels.exponential import exp
from lockstep.fast.kernels.helpers import SETTINGS
from lockstep.fast.kernels.kernel import kernel, usable
from lockstep.fast.kernels.lanes import WIDTH, added, larger, largest, splat, total
from lockstep.fast.kernels.memory import FLOATS, floats, seen, store
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Keys, Queries, Values

WIDE = np.dtype(np.float32)
HELD, TOGETHER = 0, 1  # the numbers of `now`


def attended(
    queries: Queries, keys: Keys, values: Values, mask: Seen, *, scale: float
) -> Queries | None:
    """Attend with one query (B, H, 1, D), in float32; None if that is not what is here.

    Keys and values are read as they lie, in float32 or in half precision.
    """
    batch, heads, length, width = queries.shape
    held, kind = keys.shape[2], keys.dtype
    fits = length == 1 and kind in FLOATS
    rows = readable(queries, keys, values, mask, unit=WIDTH, kind=kind) if fits else None
    if rows is None:
        return None
    shown = in_full(mask.of_last, (batch, held))
    out = np.empty((batch, heads, 1, width), np.float32)
    products, many = 2 * batch * heads * held * width, together(batch, heads, keys.shape[1])
    asked = queries[:, :, 0].astype(WIDE, copy=False)
    given = many, asked, *map(seen, rows), shown, np.float32(scale)
    attend(products, batch * heads // many, *given, out[:, :, 0])
    return out


def together(batch: int, heads: int, groups: int) -> int:
    """Return how many heads one core takes: all that share keys, if there is a group for each core.

    They read what is in the cache once.
    """
    return heads // groups if batch * groups >= SETTINGS.NUMBA_NUM_THREADS else 1


def readable(
    queries: Queries, keys: Keys, values: Values, mask: Seen, *, unit: int, kind: np.dtype = WIDE
) -> tuple[Keys, Values] | None:
    """Return keys and values whose heads lie side by side; None if a kernel cannot attend to them.

    That is so if they do not belong together, are not of that `kind`, or have heads of no whole
    `unit`; if there is none, or a query that sees none.
    """
    batch, heads, length, width = queries.shape
    held = keys.shape[2]
    alike = keys.shape == values.shape == (batch, keys.shape[1], held, width)
    fits = width % unit == 0 and heads % keys.shape[1] == 0
    alike = alike and queries.dtype == keys.dtype == values.dtype == kind
    if not (alike and fits and length and held and usable()) or mask.blind:
        return None
    return lying(keys), lying(values)


def in_full(seen: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return which keys are seen as a kernel reads them: one row of a mask may stand for all.

    What may only be read would be a type of its own, for which a kernel is compiled again.
    """
    whole = np.ascontiguousarray(seen if seen.shape == shape else np.broadcast_to(seen, shape))
    return whole if whole.flags.writeable else whole.copy()


def lying(heads: Keys) -> Keys:
    return heads if heads.strides[3] == heads.itemsize else heads.copy()


@kernel
def attend(place, many, queries, keys, values, seen, scale, out):
    """Write the contexts of `many` queries of (B, H, D) over keys and values (B, G, S, D) to `out`.

    They are one query, or all of a group. `seen` (B, S) says which keys a row may see; it sees one
    at least. D is a multiple of 16, and the last axis of all arrays is contiguous.
    """
    attend_to(place, many, queries, keys, values, seen, scale, out)


def put_token(keys, values, held, now):
    """Write a token's keys and values (1, G, 1, D) to the last of the places that are held."""
    at = now[HELD] - 1
    for group in range(keys.shape[1]):
        for index in range(keys.shape[3]):
            held[0][0, group, at, index] = keys[0, group, 0, index]
            held[1][0, group, at, index] = values[0, group, 0, index]


@kernel(before=put_token)
def attend_held(place, keys, values, held, now, queries, seen, scale, out):
    """Put a token's keys and values where a cache holds them, in buffers (1, G, room, D), and do
    the same with its queries (1, H, D), which see all that is held.

    `now` says how many tokens these are, and how many queries are one place's; `seen` (1, room) is
    true throughout.
    """
    count = now[HELD]
    some, others = held[0][:, :, :count], held[1][:, :, :count]
    attend_to(place, now[TOGETHER], queries, some, others, seen, scale, out)


@inlined
def attend_to(place, many, queries, keys, values, seen, scale, out):
    """Go along the keys once for all heads of a place, which share them; and then the values."""
    heads, width = queries.shape[1:]
    held, first = keys.shape[2], place * many
    row, group = first // heads, first % heads // (heads // keys.shape[1])
    room = (held + WIDTH - 1) // WIDTH * WIDTH
    asked, probs = np.empty((many, width), np.float32), np.empty((many, room), np.float32)
    for one in range(many):
        for index in range(width):
            asked[one, index] = queries[row, first % heads + one, index] * scale
    scored(asked, keys, row, group, seen, probs)
    for one in range(many):
        share = np.float32(1) / weighed(probs[one])
        for index in range(held):
            probs[one, index] *= share
    averaged(probs, values, row, group, seen, out, first * width)


@inlined
def weighed(scores):
    """Replace scores by their exponentials over the largest; return the sum of these."""
    lanes, tops = splat(np.float32(0)), splat(-np.float32(np.inf))
    for index in range(0, len(scores), WIDTH):
        tops = larger(floats(scores, index), tops)
    top = largest(tops)
    for index in range(0, len(scores), WIDTH):
        some = exp(added(floats(scores, index), splat(-top)))
        store(scores, index, some)
        lanes = added(lanes, some)
    return total(lanes)
