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
# Of the eight tiles: sums of two tiles of the one side with two of the other, then these four.
ONE, OTHER = 4, 6
Terms = tuple[tuple[int, int], ...]  # numbers of terms, of the one side and the other


def multiplying(pairs: Terms, *, fresh: bool) -> Callable[..., Any]:
    """Make what multiplies these pairs of terms, one after another: into `fresh` sums, or more."""

    @instruction
    def multiply_tiles(
        _: Any, one: Any, first: Any, term: Any, other: Any, second: Any, another: Any,
        steps: Any, out: Any, to: Any,
    ) -> Any:  # fmt: skip
        """Write the products of so many steps to `out` (32, 32 others), or add them to it.

        After an array of bytes comes where it begins, and how far its terms are from each other.
        """
        given = (one, types.intp, types.intp, other, *[types.intp] * 3, out, types.intp)
        return types.void(*given), partial(of_tiles, pairs, fresh)

    return multiply_tiles


def weighty(one: int, other: int) -> Terms:
    """Return which terms of two sides are multiplied, the smallest products first.

    Those are left out that are smaller than the last term of the side that has more.
    """
    most = max(one, other) - 1
    pairs = [(i, j) for i in range(one) for j in range(other) if one + other - 2 - i - j <= most]
    return tuple(sorted(pairs, key=sum))


def of_tiles(
    pairs: Terms, fresh: bool, context: Any, builder: Any, signature: Any, values: Any
) -> Any:
    def place(index: int) -> Place:
        return Place(context, builder, signature.args[index], values[index], values[index + 1])

    one, other, out = place(0), place(3), place(7)
    sums = [
        (index, out.pointer(FLOAT, (index // PAIR * DEEP * PAIR + index % PAIR) * WIDTH))
        for index in range(PAIR * PAIR)
    ]
    for index, at in sums:
        if fresh:
            ask(builder, "tilezero", index)
        else:
            load(builder, index, at, PAIR * WIDE)
    for i, j in pairs:
        first, second = one.after(values[2], i), other.after(values[5], j)
        with cgutils.for_range(builder, values[6]) as turn:
            add_step(builder, first.after(turn.index, BOTH), second.after(turn.index, BOTH))
    for index, at in sums:
        keep(builder, index, at, PAIR * WIDE)
    return context.get_dummy_value()


def add_step(builder: Any, one: Place, other: Place) -> None:
    for half in range(PAIR):
        load(builder, OTHER + half, other.pointer(I8, half * WIDE), PAIR * WIDE)
    for tile in range(PAIR):
        load(builder, ONE + tile, one.pointer(I8, tile * TILE), WIDE)
        for half in range(PAIR):
            ask(builder, "tdpbf16ps", tile * PAIR + half, ONE + tile, OTHER + half)


@instruction
def take_tiles(_: Any) -> Any:
    """Take the unit's tiles, all whole."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shape(builder, [(DEEP, WIDE)] * 8)
        return context.get_dummy_value()

    return types.void(), generate


@instruction
def store_terms(_: Any, of: Any, cells: Any, at: Any, apart: Any, lanes: Any) -> Any:
    """Cut numbers into `of.terms` bfloat16; write each sixteen `apart` from the next.

    The upper half of a float32 is one; of what is left the upper half is the next. Three make a
    number up.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, cells, at, apart, lanes = arguments
        for term, upper in enumerate(cut(builder, lanes, of.numbers["terms"])):
            half = builder.trunc(builder.lshr(upper, constant([16] * WIDTH)), vector(I16))
            start = builder.add(at, times(builder, apart, term))
            place = address(context, builder, signature.args[1], half.type, cells, start)
            builder.store(half, place, align=1)
        return context.get_dummy_value()

    return types.void(of, cells, types.intp, types.intp, lanes), generate


@instruction
def store_pairs(_: Any, of: Any, cells: Any, at: Any, apart: Any, first: Any, second: Any) -> Any:
    """Do it with two numbers a lane, which stand side by side: cells of 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, cells, at, apart, *both = arguments
        terms = [cut(builder, lanes, of.numbers["terms"]) for lanes in both]
        for term, (low, high) in enumerate(zip(*terms, strict=True)):
            cell = builder.or_(builder.lshr(low, constant([16] * WIDTH)), high)
            start = builder.add(at, times(builder, apart, term))
            place = address(context, builder, signature.args[1], cell.type, cells, start)
            builder.store(cell, place, align=4)
        return context.get_dummy_value()

    return types.void(of, cells, types.intp, types.intp, first, second), generate


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
