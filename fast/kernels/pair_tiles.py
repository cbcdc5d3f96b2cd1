"""Products of bfloat16 numbers with float32 sums, by the matrix unit: 32 rows with 16 or 32 tokens.

Rows lie as `pair_rows.fill` leaves them: pairs of columns, sixteen of which make a tile for sixteen
rows. The tokens' tiles lie one after another, each as it is read.
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
# Of the eight tiles: sums of up to two tokens' tiles with two rows', then these four.
TOKENS, ROWS = 4, 6


def multiplying(tiles: int) -> Callable[..., Any]:
    """Make what multiplies so many tiles of tokens at once."""

    @instruction
    def multiply_tiles(
        _: Any, x: Any, first: Any, terms: Any, steps: Any, begin: Any, count: Any,
        panel: Any, out: Any,
    ) -> Any:  # fmt: skip
        """Write the products of tokens with 32 rows to `out`: tiles from `first` on, which have so
        many terms, of so many steps of 32 columns each; of `count` steps from `begin` on. The sum
        begins with the first term.
        """
        given = (x, *[types.intp] * 5, panel, out)
        return types.void(*given), partial(of_tiles, tiles)

    return multiply_tiles


multiply_one, multiply_two = multiplying(1), multiplying(2)


def of_tiles(tiles: int, context: Any, builder: Any, signature: Any, values: Any) -> Any:
    _, first, terms, steps, begin, count, *_ = values

    def place(index: int, start: Any) -> Place:
        return Place(context, builder, signature.args[index], values[index], start)

    long = times(builder, builder.mul(terms, steps), TILE)
    cells = place(0, builder.mul(first, long))
    panel, out = (place(index, ir.Constant(I64, 0)) for index in (6, 7))
    for sums in range(tiles * PAIR):
        ask(builder, "tilezero", sums)
    with cgutils.for_range(builder, terms) as term, cgutils.for_range(builder, count) as turn:
        step = builder.add(begin, turn.index)
        some = cells.after(builder.add(builder.mul(term.index, steps), step), TILE)
        add_step(builder, tiles, some, long, panel.after(step, PAIR * TILE))
    for sums in range(tiles * PAIR):
        token, half = divmod(sums, PAIR)
        at = out.pointer(FLOAT, (token * DEEP * PAIR + half) * WIDE // 4)
        keep(builder, sums, at, PAIR * WIDE)
    return context.get_dummy_value()


def add_step(builder: Any, tiles: int, some: Place, long: Any, rows: Place) -> None:
    """Add the products of a step: tokens' tiles lie `long` bytes from each other."""
    for half in range(PAIR):
        load(builder, ROWS + half, rows.pointer(I8, half * WIDE), PAIR * WIDE)
    for token in range(tiles):
        tile = builder.gep(some.pointer(I8, 0), [times(builder, long, token)])
        load(builder, TOKENS + token, tile, WIDE)
        for half in range(PAIR):
            ask(builder, "tdpbf16ps", token * PAIR + half, TOKENS + token, ROWS + half)


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
        for term in (2, 1, 0):
            bits = builder.bitcast(lanes, vector(I32))
            upper = builder.and_(bits, constant([-65536] * WIDTH))
            half = builder.trunc(builder.lshr(bits, constant([16] * WIDTH)), vector(I16))
            start = builder.add(at, times(builder, apart, term))
            place = address(context, builder, signature.args[0], half.type, cells, start)
            builder.store(half, place, align=1)
            lanes = builder.fsub(lanes, builder.bitcast(upper, vector(FLOAT)))
        return context.get_dummy_value()

    return types.void(cells, types.intp, types.intp, lanes), generate


def times(builder: Any, number: Any, factor: int) -> Any:
    return builder.mul(number, ir.Constant(I64, factor))
