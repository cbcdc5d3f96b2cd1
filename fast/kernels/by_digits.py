"""The product of many tokens with codes, in whole numbers.

Of 32 rows the codes are put side by side once, as bytes; then all tokens pass by.
"""

import numpy as np

from lockstep.fast.kernels.code_tiles import (
    BLOCKS,
    leave_code_tiles,
    multiply_tile,
    take_code_tiles,
    take_rows,
)
from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, added, joined, splat, subtracted, total
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.matrix_unit import DEEP
from lockstep.fast.kernels.memory import LINE, floats, store_parts
from lockstep.fast.kernels.pair_rows import write
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.span import add_products, add_sums
from lockstep.fast.kernels.tile import turned
from lockstep.fast.kernels.weights import codes, levels

TILES = 8  # of tokens that pass by rows in the matrix unit: what they sum stays in the first cache
SUMS = DEEP * ROWS  # that the unit makes of a tile and a block of rows


def rows_of(of: Constants) -> int:
    """Return how many rows are multiplied at one place: digits pass by as few times as may be."""
    return BLOCKS * ROWS if of.numbers["unit"] else ROWS


@kernel
def multiply_digits(place, of, cells, sums, steps, matrix, y, endless):
    """Write the products of tokens in digits with `rows_of` rows of a matrix to y (M, N).

    Rows with a scale or an offset that is not finite are only told, in `endless` (N).
    """
    columns, rows = cells.shape[1] // (of.tokens * of.digits), y.shape[1]
    blocks = BLOCKS if of.unit else 1
    first, spans = place * blocks * ROWS, columns // of.span
    panels = on_a_line(blocks * columns * ROWS)
    sizes = on_a_line(blocks * 2 * ROWS * spans * 4).view(np.float32)
    for block in range(blocks):
        panel = panels[block * columns * ROWS : (block + 1) * columns * ROWS]
        some = sizes[block * 2 * ROWS * spans : (block + 1) * 2 * ROWS * spans]
        start = first + block * ROWS
        fill(of, matrix, start, rows, columns, panel, some)
        if not all_finite(some, spans):
            for row in range(start, min(start + ROWS, rows)):
                endless[row] = not row_finite(some, row - start, spans)
    if of.unit:
        by_unit(of, panels, sizes, cells, steps, spans, y, first)
    else:
        in_registers(of, panels, sizes, cells, sums, steps, spans, y, first)


@inlined
def in_registers(of, panel, sizes, cells, sums, steps, spans, y, first):
    out = on_a_line(of.tokens * ROWS * 4).view(np.float32)
    for tile in range(len(cells)):
        out[:] = 0
        for span in range(spans):
            place = (tile * spans + span) * of.tokens
            number = place * of.digits
            code, level = span * of.span * ROWS, 2 * ROWS * span
            add_products(
                of, panel, code, sizes, level, cells, number * of.span,
                sums, number, steps, 2 * place, out,
            )  # fmt: skip
        start = tile * of.tokens
        write(y, start, min(of.tokens, len(y) - start), first, out)


@inlined
def by_unit(of, panels, sizes, cells, steps, spans, y, first):
    """Do so by the matrix unit: rows stay in its tiles while some tiles of tokens pass by."""
    sums = on_a_line(BLOCKS * SUMS * 4).view(np.int32)
    each = of.tokens * ROWS  # that a tile's tokens have with a block of rows
    out = on_a_line(TILES * BLOCKS * each * 4).view(np.float32)
    take_code_tiles(of)
    for begin in range(0, len(cells), TILES):
        end = min(begin + TILES, len(cells))
        out[:] = 0
        for span in range(spans):
            take_rows(of, panels, span * of.span * ROWS)
            for tile in range(begin, end):
                place = (tile * spans + span) * of.tokens
                multiply_tile(of, cells, place * of.digits * of.span, sums)
                for block in range(BLOCKS):
                    level = 2 * ROWS * (block * spans + span)
                    to = ((tile - begin) * BLOCKS + block) * each
                    add_sums(of, sums, block * SUMS, sizes, level, steps, 2 * place, out, to)
        for tile in range(begin, end):
            start = tile * of.tokens
            count = min(of.tokens, len(y) - start)
            for block in range(BLOCKS):
                some = out[((tile - begin) * BLOCKS + block) * each :]
                write(y, start, count, first + block * ROWS, some)
    leave_code_tiles(of)


@inlined
def all_finite(sizes, spans):
    """Whether codes may be summed before they are scaled: 0 times infinity is NaN."""
    lanes = splat(np.float32(0))
    for index in range(0, 2 * spans * ROWS, WIDTH):
        size = floats(sizes, index)
        lanes = added(lanes, subtracted(size, size))
    return total(lanes) == 0


@inlined
def row_finite(sizes, within, spans):
    nothing = np.float32(0)
    for index in range(2 * spans):
        size = sizes[index * ROWS + within]
        nothing += size - size
    return nothing == 0


@inlined
def on_a_line(size):
    """Make room that begins where a line of the cache does: a vector on two lines costs twice."""
    room = np.empty(size + LINE, np.uint8)
    begin = -room.ctypes.data % LINE
    return room[begin : begin + size]


@inlined
def fill(of, matrix, first, rows, columns, panel, sizes):
    """Write the codes of a block of rows, and for each span what they are multiplied by."""
    some = np.empty(ROWS * of.span, np.uint8)
    per = of.group // of.span
    for span in range(columns // of.span):
        group, index = span // per, span % per * (of.span // WIDTH)
        for within in range(ROWS):
            row = min(first + within, rows - 1)  # behind the last: its like, which nobody reads
            for more in range(0, of.span // WIDTH, of.parts):
                at = within * of.span + more * WIDTH
                lanes = codes(of, matrix, row, group, index + more)
                for part in range(1, of.parts):
                    other = codes(of, matrix, row, group, index + more + part)
                    lanes = joined(lanes, other, 8 * part)
                store_parts(of, some, at, lanes)
            scale, offset = levels(of, matrix, row, group, index)
            sizes[2 * ROWS * span + within] = scale
            sizes[2 * ROWS * span + ROWS + within] = offset + scale * np.float32(of.zero)
        if of.unit:  # its bytes have signs
            for place in range(len(some)):
                some[place] -= np.uint8(of.zero)
        for half in range(ROWS // WIDTH):
            for column in range(0, of.span, WIDTH):
                at = half * WIDTH * of.span + column
                to = (span * of.span + column) * ROWS + 4 * half * WIDTH
                turned(some, at, of.span, panel, to)
