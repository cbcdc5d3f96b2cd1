"""Attention of many new tokens over codes: a block of them is decoded at a time, and done with.

TurboQuant's keys and values stay turned: queries are turned instead, and averages turned back.
"""

import numpy as np

from lockstep.fast.caches import turbo_cpu
from lockstep.fast.caches.held_codes import HeldCodes
from lockstep.fast.kernels.attend_prompt import BLOCK, FOUR, Averages
from lockstep.fast.kernels.code_rows import recent, together
from lockstep.fast.kernels.kernel import usable
from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Array, Keys, Queries
from lockstep.reference.stores.codecs import TurboCodes


def attended(
    queries: Queries, keys: HeldCodes, values: HeldCodes, mask: Seen, *, scale: float
) -> Queries | None:
    """Attend with queries (B, H, L, D); None if that is not what is here.

    All is computed in float32, whatever the dtype. Of other codes than TurboQuant's a block is
    rounded to the cache's dtype as it is decoded.
    """
    fits = queries.shape[2] and together(queries, keys, values, unit=FOUR)
    if not fits or mask.blind or not usable():
        return None
    wide = queries.astype(np.float32, copy=False)
    averages = Averages(queries.shape, mask, keys.shape[2], scale)
    add_codes(averages, turned(wide, keys), keys, values)
    averages.sums = turned_back(averages.sums, values)
    add_recent(averages, wide, keys, values)
    return averages.result(wide.dtype)


def add_codes(averages: Averages, asked: Array, keys: HeldCodes, values: HeldCodes) -> None:
    """Let all codes pass by, but blocks of which no query sees a key."""
    coded = keys.codes[0].shape[2]
    for start in range(0, coded, BLOCK):
        stop = min(start + BLOCK, coded)
        if averages.wanted(start, stop):
            first, second = (floats_of(side.part(start, stop)) for side in (keys, values))
            averages.add(asked, first, second, start)


def add_recent(averages: Averages, wide: Queries, keys: HeldCodes, values: HeldCodes) -> None:
    """Let the tokens pass by that are no codes."""
    late, coded = [recent(side) for side in (keys, values)], keys.codes[0].shape[2]
    for start in range(0, late[0].shape[2], BLOCK):
        first, second = (side[:, :, start : start + BLOCK] for side in late)
        first, second = (side.astype(np.float32, copy=False) for side in (first, second))
        averages.add(wide, first, second, coded + start)


def floats_of(held: HeldCodes) -> Keys:
    """Return what codes say in float32, TurboQuant's still turned."""
    if not isinstance(held.codec, TurboCodes):
        return held.decoded().astype(np.float32, copy=False)
    bits, table = held.codec.bits, held.codec.tables(held.like.shape[-1])
    if held.codec.unbiased:
        words, lengths, rest = held.codes
        return turbo_cpu.keys_still_turned(words, lengths, rest, bits, table)
    words, lengths = held.codes
    return turbo_cpu.still_turned(words, lengths, bits, table)


def turned(queries: Queries, keys: HeldCodes) -> Array:
    """Return queries as `floats_of` the keys is compared with: <R q, R k> is <q, k>."""
    if not isinstance(keys.codec, TurboCodes):
        return queries
    rows = queries.swapaxes(1, 2)  # as heads lie in a joined product: one kernel serves both
    return turbo_cpu.turned(rows, keys.codec.tables(queries.shape[-1])).swapaxes(1, 2)


def turned_back(sums: Array, values: HeldCodes) -> Array:
    """Return weighed sums of `floats_of` the values as sums of values."""
    if not isinstance(values.codec, TurboCodes):
        return sums
    return turbo_cpu.turned_back(sums, values.codec.tables(sums.shape[-1]))
