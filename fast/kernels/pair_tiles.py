"""Products of bfloat16 numbers with float32 sums, by the matrix unit: of 32 rows with 32 others.

The one side lies as it is read: of 32 rows, two tiles for each step of 32 columns. The other lies
as `pair_rows.fill` leaves it: pairs of columns, sixteen of which make a tile for sixteen rows, and
two tiles side by side. Either side may be several terms, which make its numbers up, the smallest
first.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from lockstep.fast.kernels.lanes import (
    FLOAT,
    I8,
    I16,
    I32,
    WIDTH,
    constant,
    instruction,
    vector,
)
from lockstep.fast.kernels.matrix_unit import DEEP, WIDE, ask, keep, load, shape
from lockstep.fast.kernels.memory import address
from lockstep.fast.kernels.tile import I64, PAIR, Place

TILE = DEEP * WIDE  # bytes
BOTH = PAIR * TILE  # of a step: two tiles
TERMS, OF_SHARES = 3, 2  # bfloat16 numbers that make a float32 up, and nearly a probability
# Of the eight tiles: sums of two tiles of the one side with two of the other, then these four.
ONE, OTHER = 4, 6


def multiplying(terms: int, tiles: int, *, fresh: bool) -> Callable[..., Any]:
    """Make what multiplies 32 rows by `terms` of 32 others, of which `tiles` of sixteen count.

    It begins sums, `fresh` ones, or goes on with those that are there.
    """

    @instruction
    def multiply_tiles(
        _: Any, one: Any, first: Any, other: Any, second: Any, apart: Any, steps: Any,
        out: Any, to: Any,
    ) -> Any:  # fmt: skip
        """Write the products of so many steps to `out` (32, 32 others), or add them to it.

        After an array of bytes comes where it begins. Terms lie `apart` bytes from each other.
        """
        given = (one, types.intp, other, *[types.intp] * 3, out, types.intp)
        return types.void(*given), partial(of_tiles, terms, tiles, fresh)

    return multiply_tiles


def of_tiles(
    terms: int, tiles: int, fresh: bool, context: Any, builder: Any, signature: Any, values: Any
) -> Any:
    def place(index: int) -> Place:
        return Place(context, builder, signature.args[index], values[index], values[index + 1])

    one, other, out = place(0), place(2), place(6)
    sums = [
        (tile * PAIR + half, out.pointer(FLOAT, (tile * DEEP * PAIR + half) * WIDTH))
        for tile in range(PAIR)
        for half in range(tiles)
    ]
    for index, at in sums:
        if fresh:
            ask(builder, "tilezero", index)
        else:
            load(builder, index, at, PAIR * WIDE)
    for term in range(terms):
        second = other.after(values[4], term)
        with cgutils.for_range(builder, values[5]) as turn:
            some, others = (place.after(turn.index, BOTH) for place in (one, second))
            add_step(builder, tiles, some, others)
    for index, at in sums:
        keep(builder, index, at, PAIR * WIDE)
    return context.get_dummy_value()


def add_step(builder: Any, tiles: int, one: Place, other: Place) -> None:
    for half in range(tiles):
        load(builder, OTHER + half, other.pointer(I8, half * WIDE), PAIR * WIDE)
    for tile in range(PAIR):
        load(builder, ONE + tile, one.pointer(I8, tile * TILE), WIDE)
        for half in range(tiles):
            ask(builder, "tdpbf16ps", tile * PAIR + half, ONE + tile, OTHER + half)


@instruction
def take_tiles(_: Any) -> Any:
    """Take the unit's tiles, all whole."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shape(builder, [(DEEP, WIDE)] * 8)
        return context.get_dummy_value()

    return types.void(), generate


@instruction
def store_terms(_: Any, cells: Any, at: Any, apart: Any, lanes: Any) -> Any:
    """Cut numbers into three bfloat16 that make them up; write each sixteen `apart` from the next.

    The upper half of a float32 is one; of what is left the upper half is the next.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        cells, at, apart, lanes = arguments
        for term, upper in enumerate(cut(builder, lanes, TERMS)):
            half = builder.trunc(builder.lshr(upper, constant([16] * WIDTH)), vector(I16))
            start = builder.add(at, times(builder, apart, term))
            place = address(context, builder, signature.args[0], half.type, cells, start)
            builder.store(half, place, align=1)
        return context.get_dummy_value()

    return types.void(cells, types.intp, types.intp, lanes), generate


@instruction
def store_shares(_: Any, cells: Any, at: Any, apart: Any, first: Any, second: Any) -> Any:
    """Cut into two, of two numbers a lane, which stand side by side: cells of 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        cells, at, apart, *both = arguments
        terms = [cut(builder, lanes, OF_SHARES) for lanes in both]
        for term, (low, high) in enumerate(zip(*terms, strict=True)):
            cell = builder.or_(builder.lshr(low, constant([16] * WIDTH)), high)
            start = builder.add(at, times(builder, apart, term))
            place = address(context, builder, signature.args[0], cell.type, cells, start)
            builder.store(cell, place, align=4)
        return context.get_dummy_value()

    return types.void(cells, types.intp, types.intp, first, second), generate


def cut(builder: Any, lanes: Any, terms: int) -> list[Any]:
    """Return bfloat16 numbers that make floats up, in the upper halves of lanes: smallest first."""
    found = []
    for _ in range(terms):
        bits = builder.bitcast(lanes, vector(I32))
        upper = builder.and_(bits, constant([-65536] * WIDTH))
        lanes = builder.fsub(lanes, builder.bitcast(upper, vector(FLOAT)))
        found.append(upper)
    return found[::-1]


def times(builder: Any, number: Any, factor: int) -> Any:
    return builder.mul(number, ir.Constant(I64, factor))
