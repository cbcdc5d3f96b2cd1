"""Queries, keys and values of prompts, as the matrix unit reads them: blocks of 32 tokens.

bfloat16 numbers stay as they are; float32 is cut into three such terms.
"""

import numpy as np

from lockstep.fast.kernels.by_tiles import COLUMNS, COST, unfit_row
from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.matrix_unit import DEEP, WIDE
from lockstep.fast.kernels.memory import floats, store
from lockstep.fast.kernels.pair_rows import fill
from lockstep.fast.kernels.pair_tiles import BOTH, TILE, store_terms
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.tile import PAIR, turned
from lockstep.fast.shapes import Array, Keys, Queries, Values

# Terms of the numbers, and of probabilities, by what is read.
FLOATS = Constants(format="terms", terms=3), Constants(format="terms", terms=3)
HALVES = Constants(format="terms", terms=1), Constants(format="terms", terms=2)


def terms_of(array: Array) -> tuple[Constants, Constants]:
    return FLOATS if array.dtype == np.float32 else HALVES


def lay_queries(queries: Queries) -> Array | None:
    """Lay queries (B, H, L, D), float32 or bfloat16 seen as uint16, out for products with keys.

    None if some are not finite, or so small that terms would be no full float32. The result is (B,
    H, blocks of 32, terms, 64 D octets).
    """
    batch, heads, length, width = queries.shape
    of, _ = terms_of(queries)
    blocks = -(-length // ROWS)
    cells = np.empty((batch, heads, blocks, of.numbers["terms"], 2 * ROWS * width), np.uint8)
    unfit = np.zeros(cells[..., 0, 0].size, np.bool_)
    lay_query_block(COST * queries.size, len(unfit), of, queries, cells, unfit)
    return None if unfit.any() else cells


def lay_keys(keys: Keys, values: Values) -> tuple[Array, Array] | None:
    """Lay keys and values (B, G, S, D) out alike, whose last axis is contiguous.

    None as of queries. Keys become (B, G, blocks of 32, terms, 64 D octets), values (B, G, terms,
    D / 32, blocks, 2048 octets).
    """
    batch, groups, held, width = keys.shape
    of, _ = terms_of(keys)
    blocks, terms = -(-held // ROWS), of.numbers["terms"]
    first = np.empty((batch, groups, blocks, terms, 2 * ROWS * width), np.uint8)
    second = np.empty((batch, groups, terms, width // COLUMNS, blocks, BOTH), np.uint8)
    unfit = np.zeros(batch * groups * blocks, np.bool_)
    products = 2 * COST * keys.size
    lay_key_block(products, len(unfit), of, keys, values, first, second, unfit)
    return None if unfit.any() else (first, second)


@kernel
def lay_query_block(place, of, queries, cells, unfit):
    """Lay a block of 32 queries of a head out; behind the last there are zeros."""
    heads, blocks = cells.shape[1:3]
    row, head, block = place // (heads * blocks), place // blocks % heads, place % blocks
    width, first = queries.shape[3], block * ROWS
    some = np.zeros((of.terms, ROWS, width), np.uint16)
    start = start_at(queries, row, head)
    for one in range(min(ROWS, queries.shape[2] - first)):
        at = start + (first + one) * (queries.strides[2] // queries.itemsize)
        for index in range(0, width, WIDTH):
            store_terms(of, some, one * width + index, ROWS * width, floats(queries, at + index))
        unfit[place] |= unfit_row(of, queries, at, width)
    for term in range(of.terms):
        fill(some[term].view(np.uint8), 0, cells[row, head, block, term])


@kernel
def lay_key_block(place, of, keys, values, first, second, unfit):
    """Lay a block of 32 keys and values of a group out; behind the last there are zeros."""
    groups, blocks = first.shape[1:3]
    row, group, block = place // (groups * blocks), place // blocks % groups, place % blocks
    begin = block * ROWS
    many = min(ROWS, keys.shape[2] - begin)
    unfit[place] = lay_rows(of, keys, row, group, begin, many, first[row, group, block])
    unfit[place] |= lay_columns(of, values, row, group, block, many, second[row, group])


@inlined
def start_at(array, row, head):
    return (row * array.strides[0] + head * array.strides[1]) // array.itemsize


@inlined
def lay_rows(of, keys, row, group, begin, many, cells):
    """Write rows as tiles (terms, steps of 32 columns, two of sixteen rows); return if unfit."""
    width, octets = keys.shape[3], cells.shape[1]
    if many < ROWS:
        cells[:] = 0
    start, unfit, halves = start_at(keys, row, group), False, cells.view(np.uint16)
    for one in range(many):
        at = start + (begin + one) * (keys.strides[2] // keys.itemsize)
        within = one // DEEP * TILE + one % DEEP * WIDE
        for index in range(0, width, WIDTH):
            to = (index // COLUMNS * BOTH + within) // 2 + index % COLUMNS
            store_terms(of, halves, to, octets // 2, floats(keys, at + index))
        unfit |= unfit_row(of, keys, at, width)
    return unfit


@inlined
def lay_columns(of, values, row, group, block, many, cells):
    """Write columns as tiles (terms, steps of 32 columns, blocks of 32 rows, two of sixteen)."""
    width, blocks = values.shape[3], cells.shape[2]
    start, unfit = start_at(values, row, group), False
    some, columns = np.zeros((ROWS, width), np.float32), np.empty((width, ROWS), np.float32)
    for one in range(many):
        at = start + (block * ROWS + one) * (values.strides[2] // values.itemsize)
        for index in range(0, width, WIDTH):
            store(some, one * width + index, floats(values, at + index))
        unfit |= unfit_row(of, values, at, width)
    turn_rows(some.view(np.uint8), width * 4, columns.view(np.uint8))
    halves, apart = cells.view(np.uint16), width // COLUMNS * blocks * BOTH // 2
    for index in range(width):
        within = index % COLUMNS // DEEP * TILE + index % DEEP * WIDE
        to = ((index // COLUMNS * blocks + block) * BOTH + within) // 2
        for half in range(PAIR):
            at = half * WIDTH
            store_terms(of, halves, to + at, apart, floats(columns, index * ROWS + at))
    return unfit


@inlined
def turn_rows(some, apart, columns):
    """Turn 32 rows, so many bytes apart, into columns of 32."""
    for half in range(PAIR):
        for octet in range(0, apart, WIDTH):
            start = half * DEEP * apart + octet
            turned(some, start, apart, columns, octet * ROWS + half * WIDE)
