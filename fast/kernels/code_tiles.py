"""Products of whole numbers by the matrix unit: 32 rows of codes with the digits of some tokens.

A tile's rows are the digits of all tokens, over a span of 64 columns; the other's are codes, a byte
each with a sign, as `by_digits.fill` leaves them.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from lockstep.fast.kernels.lanes import I8, I32, instruction, vector
from lockstep.fast.kernels.matrix_unit import DEEP, WIDE, ask, keep, load, shape
from lockstep.fast.kernels.tile import PAIR, Place

SUMS, TOKENS, ROWS = 0, 2, 3  # of the eight tiles: two of sums, one of tokens, two of rows
SOME = ir.ArrayType(vector(I32), DEEP * PAIR)


@instruction
def take_code_tiles(_: Any, of: Any) -> Any:
    """Take the unit's tiles, in the shapes that a format's spans have, if it is to be used."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if of.numbers["unit"]:
            digits = of.numbers["tokens"] * of.numbers["digits"], WIDE
            shape(builder, [digits] * ROWS + [(DEEP, WIDE)] * (8 - ROWS))
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


def dots_of_unit(
    builder: Any, numbers: dict[str, int], codes: Place, cells: Place
) -> dict[tuple[int, int], list[Any]]:
    """Multiply codes with digits; return the sums over each digit."""
    load(builder, TOKENS, cells.pointer(I8, 0), WIDE)
    room = cgutils.alloca_once(builder, SOME)
    for half in range(PAIR):
        ask(builder, "tilezero", SUMS + half)
        load(builder, ROWS + half, codes.pointer(I8, half * WIDE), PAIR * WIDE)
        ask(builder, "tdpbssd", SUMS + half, TOKENS, ROWS + half)
        keep(builder, SUMS + half, at(builder, room, half), PAIR * WIDE)
    digits = numbers["digits"]
    return {
        (token, half): [
            builder.load(at(builder, room, (token * digits + digit) * PAIR + half))
            for digit in range(digits)
        ]
        for token in range(numbers["tokens"])
        for half in range(PAIR)
    }


def at(builder: Any, room: Any, index: int) -> Any:
    return cgutils.gep_inbounds(builder, room, 0, index)
