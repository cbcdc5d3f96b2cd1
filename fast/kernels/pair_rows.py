"""A block of rows of bfloat16 as products take it: pairs of columns side by side.

A cell is two neighbouring columns of a row, 32 bits. Cells of 32 rows lie one after another, then
those of the next two columns.
"""

import numpy as np

from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.memory import floats
from lockstep.fast.kernels.pairs import store_sums
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.tile import turned


@inlined
def fill(octets, first, panel):
    """Lay out a block of rows; behind the last there are zeros."""
    rows, width = octets.shape
    for half in range(0, ROWS, WIDTH):
        begin, to = first + half, 4 * half
        if begin + WIDTH <= rows:
            for octet in range(0, width, WIDTH):
                turned(octets, begin * width + octet, width, panel, octet * ROWS + to)
        else:
            few = np.zeros((WIDTH, width), np.uint8)
            for row in range(begin, rows):
                few[row - begin] = octets[row]
            for octet in range(0, width, WIDTH):
                turned(few, octet, width, panel, octet * ROWS + to)


@inlined
def write(y, start, tokens, first, out):
    """Write a tile to y (M, N), as far as that reaches, rounded to what y holds."""
    rows = y.shape[1]
    whole = first + ROWS <= rows
    room = y if whole else np.empty((tokens, ROWS), y.dtype)
    for token in range(tokens):
        place = (start + token) * rows + first if whole else token * ROWS
        for index in range(0, ROWS, WIDTH):
            store_sums(room, place + index, floats(out, token * ROWS + index))
    if not whole:
        for token in range(tokens):
            for row in range(rows - first):
                y[start + token, first + row] = room[token, row]
