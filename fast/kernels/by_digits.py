"""The product of many tokens with codes, in whole numbers.

Of 32 rows the codes are put side by side once, as bytes; then all tokens pass by.
"""

import numpy as np

from lockstep.fast.kernels.code_tiles import leave_code_tiles, take_code_tiles
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, added, joined, splat, subtracted, total
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.memory import LINE, floats, store_parts
from lockstep.fast.kernels.pair_rows import write
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.span import add_products
from lockstep.fast.kernels.tile import turned
from lockstep.fast.kernels.weights import codes, levels


@kernel
def multiply_digits(block, of, cells, sums, steps, matrix, y, endless):
    """Write the products of tokens in digits with a block of rows of a matrix to y (M, N).

    Rows with a scale or an offset that is not finite are only told, in `endless` (N).
    """
    tokens, rows = y.shape
    columns = cells.shape[1] // (of.tokens * of.digits)
    first, spans = block * ROWS, columns // of.span
    panel = on_a_line(columns * ROWS)
    sizes = on_a_line(2 * ROWS * spans * 4).view(np.float32)
    fill(of, matrix, first, rows, columns, panel, sizes)
    out = on_a_line(of.tokens * ROWS * 4).view(np.float32)
    take_code_tiles(of)
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
        write(y, start, min(of.tokens, tokens - start), first, out)
    leave_code_tiles(of)
    if not all_finite(sizes, spans):
        for row in range(first, min(first + ROWS, rows)):
            endless[row] = not row_finite(sizes, row - first, spans)


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
