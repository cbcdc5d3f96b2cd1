"""The product of many tokens with bfloat16 rows, by the processor's matrix unit.

Tokens are bfloat16 themselves, or float32, each exactly the sum of three such terms. Then products
with the smallest terms are summed first. The rows are read as they lie; what is laid out in pairs
of columns is the tokens, once for all rows.
"""

import numpy as np

from lockstep.fast.kernels.again import empty
from lockstep.fast.kernels.by_digits import on_a_line
from lockstep.fast.kernels.digits import HIGHEST, TINY
from lockstep.fast.kernels.helpers import SETTINGS
from lockstep.fast.kernels.kernel import kernel, usable
from lockstep.fast.kernels.lanes import WIDTH, added, how_many, larger, largest, magnitude, splat
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.matrix_unit import DEEP, WIDE, leave_tiles, possible
from lockstep.fast.kernels.memory import LINE, ask_for, floats, store
from lockstep.fast.kernels.pair_rows import fill
from lockstep.fast.kernels.pair_tiles import BOTH, TERMS, multiplying, store_terms, take_tiles
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.tile import CELL, PAIR
from lockstep.fast.kernels.tile_sums import write_blocks
from lockstep.fast.shapes import Array

COLUMNS = WIDE // 2  # of a tile
TOGETHER = 1024  # tokens whose terms are held at once
PIECE = 32  # steps whose products are one sum: of more columns sums are added, or it errs more
NEAR = 8  # steps of 32 rows and of 32 tokens, which stay in the first cache
HELD = 1 << 20  # bytes of rows that a core holds in its second cache
EACH = 4  # places for each core at least, so that no core waits long for another
RUN = 4  # lines of memory that are read of a row at a time
COST = 4  # times that of a product, a number that is laid out
begin_many, more_of_many = (multiplying(1, PAIR, fresh=fresh) for fresh in (True, False))
begin_few, more_of_few = (multiplying(1, 1, fresh=fresh) for fresh in (True, False))


def fits(columns: int) -> bool:
    """Whether rows are cut into tiles without rest, and there is a unit for them."""
    return columns % COLUMNS == 0 and possible("amx-bf16") and usable()


def product_of_halves(x: Array, octets: Array, out: Array) -> None:
    """Write the products of tokens (M, K) with rows (N, 2 K octets) to `out` (M, N).

    All are bfloat16, and tokens and `out` are seen as uint16. Sums are rounded once.
    """
    for part in parts_of(len(x)):
        some = x[part]
        cells = room_for(some, 1)
        lay_halves(COST * some.size, len(cells), some.view(np.uint8), cells)
        multiply(cells, octets, out[part])


def product_of_terms(x: Array, octets: Array, out: Array) -> Array:
    """Do it for float32 tokens and `out`; return which tokens have no terms (M).

    Those are infinite somewhere, or NaN, or so small that terms would be no full float32. What is
    written of them says nothing.
    """
    unfit = np.zeros(len(x), np.bool_)
    for part in parts_of(len(x)):
        some = x[part]
        cells = room_for(some, TERMS)
        cut_terms(COST * some.size, len(cells), some, cells, unfit[part])
        multiply(cells, octets, out[part])
    return unfit


def parts_of(tokens: int) -> list[slice]:
    """Return which tokens go together: in a long prompt their terms would take much memory."""
    return [slice(start, start + TOGETHER) for start in range(0, tokens, TOGETHER)]


def room_for(x: Array, terms: int) -> Array:
    """Return room for tokens (M, K) as they are laid out: (blocks of 32, terms, 32 K octets)."""
    return empty((-(-len(x) // ROWS), terms, 2 * ROWS * x.shape[1]), np.uint8)


def multiply(cells: Array, octets: Array, out: Array) -> None:
    rows, width = octets.shape
    wide = together(rows, width, len(cells))
    products, places = cells.size // 2 * rows, -(-rows // (ROWS * wide))
    multiply_tiles(products, places, wide, cells, octets.view(np.float32), out)


def together(rows: int, width: int, passing: int) -> int:
    """Return how many blocks of rows a core takes at a time: tokens pass by that much less often.

    So many as its cache holds, and as leave work for all cores. If one block of tokens passes by,
    rows have half of that cache: what is written for one look alone costs more than it saves.
    """
    wide, held = 8, HELD if passing > 1 else HELD // 2
    each = rows // (EACH * SETTINGS.NUMBA_NUM_THREADS)
    while wide > 1 and (ROWS * wide > each or ROWS * wide * width > held):
        wide //= 2
    return wide


@kernel
def lay_halves(block, octets, cells):
    """Lay a block of bfloat16 tokens out."""
    fill(octets, block * ROWS, cells[block, 0])


@kernel
def cut_terms(block, x, cells, unfit):
    """Lay the terms of a block of tokens of x (M, K) out, the smallest first."""
    columns, first = x.shape[1], block * ROWS
    some = np.zeros((TERMS, ROWS, columns), np.uint16)
    for token in range(first, min(first + ROWS, len(x))):
        for column in range(0, columns, WIDTH):
            lanes = floats(x, token * columns + column)
            store_terms(some, (token - first) * columns + column, ROWS * columns, lanes)
        top, finite = sizes(x, token * columns, columns)
        unfit[token] = not finite or 0 < top < TINY
    for term in range(TERMS):
        fill(some[term].view(np.uint8), 0, cells[block, term])


@inlined
def sizes(array, at, width):
    """Return the largest size of a row's numbers, and whether all are finite."""
    top, finite = splat(np.float32(0)), 0
    for index in range(0, width, WIDTH):
        size = magnitude(floats(array, at + index))
        top, finite = larger(size, top), finite + how_many(size, np.float32(0), HIGHEST)
    return largest(top), finite == width


@kernel
def multiply_tiles(place, wide, cells, rows, y):
    """Write the products of all tokens with some blocks of rows of a matrix to y (M, N).

    Two columns of the rows (N, K / 2) are one number. Each block of tokens goes by all these rows,
    a few steps of them at a time.
    """
    first, steps = place * wide * ROWS, rows.shape[1] // WIDTH
    blocks = min(wide, (len(rows) - first + ROWS - 1) // ROWS)
    panel = on_a_line(blocks * steps * BOTH)
    for block in range(blocks):
        put_rows(rows, first + block * ROWS, panel.view(np.float32), block * steps * BOTH // CELL)
    sums, piece = on_a_line(blocks * ROWS * ROWS * 4), on_a_line(blocks * ROWS * ROWS * 4)
    out, more, room = sums.view(np.float32), piece.view(np.float32), on_a_line(ROWS * ROWS * 4)
    pairs, written = on_a_line(ROWS * ROWS * 2).view(np.int32), room.view(np.float32)
    take_tiles()
    for some in range(len(cells)):
        few = len(y) - some * ROWS <= DEEP
        put_piece(cells, some, few, panel, blocks, steps, 0, out)
        for begin in range(PIECE, steps, PIECE):
            put_piece(cells, some, few, panel, blocks, steps, begin, more)
            for index in range(0, len(out), WIDTH):
                store(out, index, added(floats(out, index), floats(more, index)))
        write_blocks(y, some * ROWS, first, blocks, out, pairs, room, written)
    leave_tiles()


@inlined
def put_rows(rows, first, panel, to):
    """Copy a block of rows to where a step's lie together, a few lines of each at a time."""
    width = rows.shape[1]
    for begin in range(0, width, RUN * WIDTH):
        for within in range(ROWS):
            row = min(first + within, len(rows) - 1)  # behind the last: its like, which none reads
            for column in range(begin, min(begin + RUN * WIDTH, width), WIDTH):
                at = to + column * ROWS + within * WIDTH
                store(panel, at, floats(rows, row * width + column))


@inlined
def put_piece(cells, some, few, panel, blocks, steps, begin, piece):
    """Write the products of a block of tokens with those of rows, of steps from `begin`."""
    terms, end = cells.shape[1], min(begin + PIECE, steps)
    for term in range(terms):
        start = (some * terms + term) * steps
        for step in range(begin, end, NEAR):
            near, at = min(NEAR, end - step), (start + step) * BOTH
            fresh = term == 0 and step == begin
            for block in range(blocks):
                row, to = (block * steps + step) * BOTH, block * ROWS * ROWS
                ask_for_part(cells, at + terms * steps * BOTH, near * BOTH, block, blocks)
                add_tiles(fresh, few, panel, row, cells, at, near, piece, to)


@inlined
def ask_for_part(cells, start, size, part, parts):
    """Ask for a part of the next tokens' bytes, while these tokens are multiplied."""
    for at in range(start + size * part // parts, start + size * (part + 1) // parts, LINE):
        ask_for(cells, at)


@inlined
def add_tiles(fresh, few, panel, row, cells, at, near, piece, to):
    """Begin sums of tokens with 32 rows, or add to them; `few` are sixteen tokens at most."""
    if few and fresh:
        begin_few(panel, row, cells, at, 0, near, piece, to)
    elif few:
        more_of_few(panel, row, cells, at, 0, near, piece, to)
    elif fresh:
        begin_many(panel, row, cells, at, 0, near, piece, to)
    else:
        more_of_many(panel, row, cells, at, 0, near, piece, to)
