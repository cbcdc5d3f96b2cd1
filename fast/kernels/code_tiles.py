"""Products of whole numbers by the matrix unit: 32 rows of codes with the digits of some tokens.

A tile's rows are the digits of some tokens, over a span of columns; the other's are codes, a byte
each with a sign, as `by_digits.fill` leaves them.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import make_array

from lockstep.fast.kernels.lanes import I8, WIDTH, instruction
from lockstep.fast.kernels.matrix_unit import DEEP, WIDE, ask, keep, load, shape
from lockstep.fast.kernels.tile import CELL, I64, PAIR, Place

BLOCKS = 2  # of 32 rows, that the unit has at once
# Of the eight tiles two are of sums, one is of tokens, and two of each block of rows.
SUMS, TOKENS, ROWS = 0, 2, 3


@instruction
def take_code_tiles(_: Any, of: Any) -> Any:
    """Take the unit's tiles, in the shapes that a format's spans have, if it is to be used."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if of.numbers["unit"]:
            rows, span = of.numbers["tokens"] * of.numbers["digits"], of.numbers["span"]
            of_rows = [(span // CELL, WIDE)] * (BLOCKS * PAIR)
            shape(builder, [(rows, WIDE)] * TOKENS + [(rows, span)] + of_rows + [(0, 0)])
        return context.get_dummy_value()

    return types.void(of), generate


@instruction
def leave_code_tiles(_: Any, of: Any) -> Any:
    """Leave the unit, if it was used."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if of.numbers["unit"]:
            ask(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(of), generate


@instruction
def take_rows(_: Any, of: Any, panels: Any, code: Any) -> Any:
    """Read the codes of a span, which begin at a place of the first of equal panels."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if of.numbers["unit"]:
            _, array, start = arguments
            size = cgutils.unpack_tuple(builder, make_array(panels)(context, builder, array).shape)
            apart = builder.sdiv(size[0], ir.Constant(I64, BLOCKS))
            codes = Place(context, builder, panels, array, start)
            for block in range(BLOCKS):
                for half in range(PAIR):
                    place = codes.pointer(I8, half * WIDE)
                    load(builder, ROWS + block * PAIR + half, place, PAIR * WIDE)
                codes = codes.after(apart, 1)
        return context.get_dummy_value()

    return types.void(of, panels, types.intp), generate


@instruction
def multiply_tile(_: Any, of: Any, cells: Any, cell: Any, room: Any) -> Any:
    """Multiply the rows that were read with a tile of digits; write the sums over each of these.

    They come to an array of int32: a block's rows of a digit, one digit after another, then those
    of the next block.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if of.numbers["unit"]:
            digits = Place(context, builder, cells, *arguments[1:3])
            sums = Place(context, builder, room, arguments[3], ir.Constant(I64, 0))
            load(builder, TOKENS, digits.pointer(I8, 0), of.numbers["span"])
            for half in range(BLOCKS * PAIR):
                tile, behind = SUMS + half % 2, half // PAIR * DEEP * PAIR + half % PAIR
                ask(builder, "tilezero", tile)
                ask(builder, "tdpbssd", tile, TOKENS, ROWS + half)
                keep(builder, tile, sums.pointer(I8, behind * WIDTH), PAIR * WIDE)
        return context.get_dummy_value()

    return types.void(of, cells, types.intp, room), generate
