"""What the matrix unit summed of blocks of 32 rows and 32 tokens, written to the product.

Of sums a row's tokens lie side by side, and in the product a token's rows.
"""

from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.matmul import ROWS
from lockstep.fast.kernels.matrix_unit import DEEP, WIDE
from lockstep.fast.kernels.memory import floats, store
from lockstep.fast.kernels.pair_rows import write
from lockstep.fast.kernels.pairs import store_both
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.tile import CELL, PAIR, turned

APART = 2 * WIDE  # bytes from a token to the next, where they are turned


@inlined
def write_blocks(y, start, first, blocks, sums, cells, room, turned_sums):
    """Write blocks of 32 rows' sums for 32 tokens to y (M, N), as far as that reaches.

    `cells` are for a block of these in pairs, and `room` for one with its tokens in the rows, which
    is `turned_sums` in floats. All is done here, since a call counts who uses an array, and with it
    cores would wait for each other.
    """
    rows, tokens = y.shape[1], min(ROWS, len(y) - start)
    for block in range(blocks):
        row, at = first + block * ROWS, block * ROWS * ROWS
        to = start * rows + row
        if row + ROWS <= rows and y.itemsize == 2:
            turn_pairs(sums, at, tokens, cells, room)
            for token in range(tokens):
                store(y, to + token * rows, floats(turned_sums, token * ROWS))
        elif row + ROWS <= rows:
            turn_floats(sums, at, tokens, room)
            for token in range(tokens):
                store(y, to + token * rows, floats(turned_sums, token * ROWS))
                store(y, to + token * rows + WIDTH, floats(turned_sums, token * ROWS + WIDTH))
        else:
            turn_floats(sums, at, tokens, room)
            write(y, start, tokens, row, turned_sums)


@inlined
def turn_floats(sums, at, tokens, room):
    for half in range(PAIR):
        for token in range(0, tokens, CELL):
            some = at + half * DEEP * ROWS + token
            turned(sums, some, ROWS, room, token * APART + half * WIDE)


@inlined
def turn_pairs(sums, at, tokens, cells, room):
    """Round the sums first, and put those of two neighbouring rows side by side: half as many."""
    for row in range(0, ROWS, PAIR):
        for token in range(0, ROWS, WIDTH):
            some = at + row * ROWS + token
            low, high = floats(sums, some), floats(sums, some + ROWS)
            store_both(cells, row // PAIR * ROWS + token, low, high)
    for token in range(0, tokens, CELL):
        turned(cells, token, ROWS, room, token * APART)
