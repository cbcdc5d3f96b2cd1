"""The product of many tokens with codes, in whole numbers.

Of 32 rows the codes are put side by side once, as bytes; then all tokens pass by.
"""

import numpy as np

from lockstep.fast.kernels.kernel import inlined, kernel
from lockstep.fast.kernels.lanes import WIDTH, added, splat, subtracted, total
from lockstep.fast.kernels.matmul import ROWS, dot
from lockstep.fast.kernels.memory import floats, store, store_octets
from lockstep.fast.kernels.tile import add_products, turned
from lockstep.fast.kernels.weights import codes, levels

LINE = 64


@kernel
def multiply_digits(block, of, cells, sums, steps, x, matrix, y):
    """Write the products of tokens in digits with a block of rows of a matrix to y (M, N)."""
    tokens, rows = y.shape
    columns = cells.shape[1] // (of.tokens * of.digits)
    first, spans = block * ROWS, columns // of.span
    panel = on_a_line(columns * ROWS)
    sizes = on_a_line(2 * ROWS * spans * 4).view(np.float32)
    fill(of, matrix, first, rows, columns, panel, sizes)
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
        for token in range(min(of.tokens, tokens - start)):
            place = (start + token) * rows + first
            if first + ROWS <= rows:
                store(y, place, floats(out, token * ROWS))
                store(y, place + WIDTH, floats(out, token * ROWS + WIDTH))
            else:
                for row in range(rows - first):
                    y[start + token, first + row] = out[token * ROWS + row]
    if not all_finite(sizes, spans):
        for row in range(first, min(first + ROWS, rows)):
            if not row_finite(sizes, row - first, spans):
                for token in range(tokens):
                    y[token, row] = dot(of, x, matrix, row, token)


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
            for more in range(of.span // WIDTH):
                at = within * of.span + more * WIDTH
                store_octets(some, at, codes(of, matrix, row, group, index + more))
            scale, offset = levels(of, matrix, row, group, index)
            sizes[2 * ROWS * span + within] = scale
            sizes[2 * ROWS * span + ROWS + within] = offset + scale * np.float32(of.zero)
        for half in range(ROWS // WIDTH):
            for column in range(0, of.span, WIDTH):
                at = half * WIDTH * of.span + column
                to = (span * of.span + column) * ROWS + 4 * half * WIDTH
                turned(some, at, of.span, panel, to)
