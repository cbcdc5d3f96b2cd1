"""The product of many tokens with bfloat16 rows, by the processor's matrix unit.

Tokens are bfloat16 themselves, or float32, each exactly the sum of three such terms. Then products
with the smallest terms are summed first.
"""

import numpy as np

from lockstep.fast.kernels.by_digits import on_a_line
from lockstep.fast.kernels.digits import HIGHEST, TINY
from lockstep.fast.kernels.kernel import kernel, usable
from lockstep.fast.kernels.lanes import WIDTH, added, how_many, larger, largest, magnitude, splat
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.matrix_unit import DEEP, WIDE, leave_tiles, possible
from lockstep.fast.kernels.memory import floats, store
from lockstep.fast.kernels.pair_rows import fill, write
from lockstep.fast.kernels.pair_tiles import multiply_one, multiply_two, store_terms, take_tiles
from lockstep.fast.shapes import Array

COLUMNS = WIDE // 2  # of a tile
TERMS = 3  # bfloat16 numbers that a float32 is made of
TOGETHER = 1024  # tokens whose terms are held at once
PIECE = 32  # steps whose products are one sum: of more columns sums are added, or it errs more
COST = 4  # times that of a product, a number cut into terms


def fits(columns: int) -> bool:
    """Whether rows are cut into tiles without rest, and there is a unit for them."""
    return columns % COLUMNS == 0 and possible("amx-bf16") and usable()


def product_of_halves(x: Array, octets: Array, out: Array) -> None:
    """Write the products of tokens (M, K) with rows (N, 2 K octets) to `out` (M, N).

    All are bfloat16, and tokens and `out` are seen as uint16. Sums are rounded once.
    """
    for part in parts_of(len(x)):
        multiply(x[part], 1, in_tiles(x[part]), octets, out[part])


def in_tiles(x: Array) -> Array:
    """Lay tokens (M, K) out: (tiles, steps, tokens, columns). Zeros fill up the last tile."""
    parts = x.reshape(len(x), -1, COLUMNS)
    cells = np.zeros((-(-len(x) // DEEP), parts.shape[1], DEEP, COLUMNS), np.uint16)
    for tile, some in enumerate(cells):
        tokens = parts[tile * DEEP : (tile + 1) * DEEP]
        some[:, : len(tokens)] = tokens.swapaxes(0, 1)
    return cells


def product_of_terms(x: Array, octets: Array, out: Array) -> Array:
    """Do it for float32 tokens and `out`; return which tokens have no terms (M).

    Those are infinite somewhere, or NaN, or so small that terms would be no full float32. What is
    written of them says nothing.
    """
    unfit = np.zeros(len(x), np.bool_)
    for part in parts_of(len(x)):
        some = x[part]
        shape = -(-len(some) // DEEP), TERMS, x.shape[1] // COLUMNS, DEEP, COLUMNS
        cells = np.zeros(shape, np.uint16)
        cut_terms(COST * some.size, len(cells), some, cells.reshape(-1), unfit[part])
        multiply(some, TERMS, cells, octets, out[part])
    return unfit


def parts_of(tokens: int) -> list[slice]:
    """Return which tokens go together: in a long prompt their terms would take much memory."""
    return [slice(start, start + TOGETHER) for start in range(0, tokens, TOGETHER)]


def multiply(x: Array, terms: int, cells: Array, octets: Array, out: Array) -> None:
    products, blocks = terms * x.size * len(octets), -(-len(octets) // ROWS)
    multiply_tiles(products, blocks, terms, cells.reshape(-1).view(np.uint8), octets, out)


@kernel
def cut_terms(tile, x, cells, unfit):
    """Write the terms of a tile's tokens of x (M, K), the smallest first."""
    columns, first = x.shape[1], tile * DEEP
    apart = columns * DEEP  # numbers between a number's terms
    for token in range(first, min(first + DEEP, len(x))):
        top, finite = splat(np.float32(0)), 0
        for column in range(0, columns, WIDTH):
            some = floats(x, token * columns + column)
            size = magnitude(some)
            top, finite = larger(size, top), finite + how_many(size, np.float32(0), HIGHEST)
            step, within = column // COLUMNS, column % COLUMNS
            place = (step * DEEP + token - first) * COLUMNS + within
            store_terms(cells, tile * TERMS * apart + place, apart, some)
        unfit[token] = finite < columns or 0 < largest(top) < TINY


@kernel
def multiply_tiles(block, terms, cells, octets, y):
    """Write the products of all tokens with a block of rows of a matrix to y (M, N)."""
    first, steps = block * ROWS, octets.shape[1] // WIDE
    panel = on_a_line(octets.shape[1] * ROWS)
    fill(octets, first, panel)
    out = on_a_line(2 * DEEP * ROWS * 4).view(np.float32)
    piece = on_a_line(2 * DEEP * ROWS * 4).view(np.float32)
    take_tiles()
    for start in range(0, len(y), 2 * DEEP):
        out[:] = 0
        for begin in range(0, steps, PIECE):
            count = min(PIECE, steps - begin)
            if start + DEEP < len(y):
                multiply_two(cells, start // DEEP, terms, steps, begin, count, panel, piece)
            else:
                multiply_one(cells, start // DEEP, terms, steps, begin, count, panel, piece)
            for place in range(0, len(out), WIDTH):
                store(out, place, added(floats(out, place), floats(piece, place)))
        write(y, start, min(2 * DEEP, len(y) - start), first, out)
    leave_tiles()
