"""Heads of prompts in bfloat16 as the matrix unit reads them: blocks of 32 tokens, seen as uint16.

Behind the last token there are zeros.
"""

import numpy as np

from lockstep.fast.kernels.again import empty
from lockstep.fast.kernels.by_tiles import COLUMNS, COST, sizes
from lockstep.fast.kernels.digits import TINY
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.memory import floats, store
from lockstep.fast.kernels.pair_rows import fill
from lockstep.fast.kernels.pair_tiles import BOTH
from lockstep.fast.kernels.pairs import store_rounded
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.shapes import Array, Keys, Queries, Values

TILES = BOTH // 2  # numbers of a step: 32 rows of 32 columns


def lay_queries(queries: Queries) -> Array | None:
    """Lay queries (B, H, L, D) out in pairs of columns: (B, H, blocks, 64 D octets).

    None if some are not finite. The last axis is contiguous, here as below.
    """
    batch, heads, length, width = queries.shape
    cells = empty((batch, heads, -(-length // ROWS), 2 * ROWS * width), np.uint8)
    finite = np.empty(cells[..., 0].size, np.bool_)
    lay_query_block(COST * queries.size, len(finite), queries, cells, finite)
    return cells if finite.all() else None


def lay_keys(keys: Keys, values: Values) -> tuple[Array, Array] | None:
    """Lay keys and values (B, G, S, D) out in steps of 32 columns, the values' being tokens.

    None if some are not finite, or values of a block so small that the unit would take what they
    add for 0. Keys become (B, G, blocks, D / 32, 2048 octets), values (B, G, D / 32, blocks, 2048
    octets).
    """
    batch, groups, held, width = keys.shape
    blocks, parts = -(-held // ROWS), width // COLUMNS
    rows = empty((batch, groups, blocks, parts, BOTH), np.uint8)
    columns = empty((batch, groups, parts, blocks, BOTH), np.uint8)
    fit = np.empty(batch * groups * blocks, np.bool_)
    lay_key_block(2 * COST * keys.size, len(fit), keys, values, rows, columns, fit)
    return (rows, columns) if fit.all() else None


@kernel
def lay_query_block(place, queries, cells, finite):
    """Lay a block of 32 queries of a head out."""
    heads, blocks = cells.shape[1:3]
    row, head, block = place // (heads * blocks), place // blocks % heads, place % blocks
    some = rows_of(queries, row, head, block * ROWS)
    _, finite[place] = sizes(some, 0, some.size)
    halves = np.empty(some.shape, np.uint16)
    for index in range(0, some.size, WIDTH):
        store_rounded(halves, index, floats(some, index))
    fill(halves.view(np.uint8), 0, cells[row, head, block])


@kernel
def lay_key_block(place, keys, values, rows, columns, fit):
    """Lay a block of 32 keys and values of a group out."""
    groups, blocks = rows.shape[1:3]
    row, group, block = place // (groups * blocks), place // blocks % groups, place % blocks
    some = rows_of(keys, row, group, block * ROWS)
    _, finite = sizes(some, 0, some.size)
    put_rows(some, rows[row, group, block].view(np.uint16))
    some = rows_of(values, row, group, block * ROWS)
    top, finite_values = sizes(some, 0, some.size)
    put_columns(some, columns[row, group].view(np.uint16), block)
    fit[place] = finite and finite_values and not 0 < top < TINY


@inlined
def rows_of(heads, row, head, first):
    """Return 32 rows of a head (32, D) in float32."""
    width, apart = heads.shape[3], heads.strides[2] // heads.itemsize
    start = (row * heads.strides[0] + head * heads.strides[1]) // heads.itemsize + first * apart
    some = np.zeros((ROWS, width), np.float32)
    for one in range(min(ROWS, heads.shape[2] - first)):
        for index in range(0, width, WIDTH):
            store(some, one * width + index, floats(heads, start + one * apart + index))
    return some


@inlined
def put_rows(some, tiles):
    """Write rows (32, D) to tiles (D / 32, 32 rows of 32 columns)."""
    width = some.shape[1]
    for one in range(ROWS):
        for index in range(0, width, WIDTH):
            to = index // COLUMNS * TILES + one * COLUMNS + index % COLUMNS
            store_rounded(tiles, to, floats(some, one * width + index))


@inlined
def put_columns(some, tiles, block):
    """Write columns of rows (32, D) to a block of tiles (D / 32, blocks, 32 columns of 32 rows)."""
    turned = np.empty(some.size, np.float32)
    fill(some.view(np.uint8), 0, turned.view(np.uint8))  # cells are floats here
    for index in range(0, some.size, WIDTH):
        part, within = index // TILES, index % TILES
        to = (part * tiles.shape[1] + block) * TILES + within
        store_rounded(tiles, to, floats(turned, index))
