"""Products of bfloat16 numbers with float32 sums: 32 rows with some tokens, in the registers.

Each of 16 lanes is a row. A step takes two neighbouring columns, one cell of 32 bits: the rows'
cells come from memory once for all tokens, and a token's is the same in all lanes. What a step does
is one instruction of the processor for 32 products (AVX-512's BF16).
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from lockstep.fast.kernels.lanes import FLOAT, I16, I32, WIDTH, constant, instruction, vector
from lockstep.fast.kernels.memory import address, from_bfloat16
from lockstep.fast.kernels.tile import I64, PAIR, Place, has_feature

MANY, FOUR = 12, 4  # tokens whose sums fit into the registers with all that they need; at the end
UNROLLED = 8  # cells a turn


class BFloat(ir.types._BaseFloatType):  # type: ignore[name-defined]
    """LLVM's type, which llvmlite does not name. No number of it is ever written out."""

    null, intrinsic_name = "0.0", "bf16"

    def __str__(self) -> str:
        return "bfloat"


BFloat._create_instance()
CELLS = ir.VectorType(BFloat(), 2 * WIDTH)


def summed(builder: Any, sums: Any, rows: Any, token: Any) -> Any:
    """Add to each lane's sum the two products of its row's cell with the token's."""
    kind = ir.FunctionType(vector(FLOAT), [vector(FLOAT), CELLS, CELLS])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [sums, *(builder.bitcast(one, CELLS) for one in (rows, token))])


def multiplying(tokens: int) -> Callable[..., Any]:
    """Make what multiplies so many tokens at once."""

    @instruction
    def multiply_tile(_: Any, x: Any, first: Any, cells: Any, panel: Any, out: Any) -> Any:
        """Write the products of tokens from `first` on, of `cells` each, with 32 rows to `out`.

        The tokens lie as `side_by_side` leaves them, the rows as `pair_rows.fill` does. There is a
        whole number of `UNROLLED` cells.
        """
        given = (x, types.intp, types.intp, panel, out)
        return types.void(*given), partial(of_a_tile, tokens)

    return multiply_tile


multiply_many, multiply_four = multiplying(MANY), multiplying(FOUR)


def of_a_tile(tokens: int, context: Any, builder: Any, signature: Any, values: Any) -> Any:
    _, first, cells, *_ = values

    def place(index: int, start: Any) -> Place:
        return Place(context, builder, signature.args[index], values[index], start)

    tile = place(0, builder.mul(first, cells))
    panel, out = (place(index, ir.Constant(I64, 0)) for index in (3, 4))
    nothing = ir.Constant(vector(FLOAT), [0.0] * WIDTH)
    sums = [cgutils.alloca_once_value(builder, nothing) for _ in range(tokens * PAIR)]
    turns = builder.sdiv(cells, ir.Constant(I64, UNROLLED))
    with cgutils.for_range(builder, turns) as turn:
        some = panel.after(turn.index, UNROLLED * PAIR * WIDTH * 4)
        others = tile.after(turn.index, UNROLLED * tokens)
        for cell in range(UNROLLED):
            both = [some.many(I32, (cell * PAIR + half) * 4) for half in range(PAIR)]
            for token in range(tokens):
                number = others.one(I32, cell * tokens + token)
                for half, rows in enumerate(both):
                    total = sums[token * PAIR + half]
                    builder.store(summed(builder, builder.load(total), rows, number), total)
    for index, total in enumerate(sums):
        place = out.pointer(vector(FLOAT), index * WIDTH)
        builder.store(builder.load(total), place, align=4)
    return context.get_dummy_value()


@instruction
def store_sums(_: Any, array: Any, at: Any, lanes: Any) -> Any:
    """Do what `store_rounded` does with sums of which none lies below 2**-126, but for 0."""
    return storing(array, lanes, of_sums())


@instruction
def store_both(_: Any, cells: Any, at: Any, low: Any, high: Any) -> Any:
    """Do it with two numbers a lane, which stand side by side: sixteen cells of 32 bits."""
    narrow = of_sums()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        cells, at, *both = arguments
        low, high = (widened_bits(builder, narrow(builder, lanes)) for lanes in both)
        cell = builder.or_(low, builder.shl(high, constant([16] * WIDTH)))
        place = address(context, builder, signature.args[0], cell.type, cells, at)
        builder.store(cell, place, align=4)
        return context.get_dummy_value()

    return types.void(cells, types.intp, low, high), generate


def widened_bits(builder: Any, halves: Any) -> Any:
    return builder.zext(builder.bitcast(halves, vector(I16)), vector(I32))


def by_instruction(builder: Any, lanes: Any) -> Any:
    kind = ir.FunctionType(ir.VectorType(BFloat(), WIDTH), [vector(FLOAT)])
    name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [lanes])


@instruction
def store_rounded(_: Any, array: Any, at: Any, lanes: Any) -> Any:
    """Write the lanes to neighbours of an array: as they are to float32, else as bfloat16."""
    return storing(array, lanes, to_bfloat16)


def of_sums() -> Callable[..., Any]:
    """Return what rounds sums, of which none lies below 2**-126, but for 0."""
    return by_instruction if possible() else to_bfloat16


def storing(array: Any, lanes: Any, narrow: Callable[..., Any]) -> Any:
    """Return what writes lanes to neighbours of an array, made `narrow` if it is not of float32."""
    wide = array.dtype == types.float32

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, lanes = arguments
        result = lanes if wide else narrow(builder, lanes)
        place = address(context, builder, signature.args[0], result.type, array, at)
        builder.store(result, place, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


@instruction
def rounded_like(_: Any, array: Any, lanes: Any) -> Any:
    """Round the lanes as `store_rounded` would, but keep them."""
    wide = array.dtype == types.float32

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = arguments[1]
        return lanes if wide else from_bfloat16(builder, to_bfloat16(builder, lanes))

    return lanes(array, lanes), generate


def to_bfloat16(builder: Any, lanes: Any) -> Any:
    """Round to the nearest, halves to the even one.

    The instruction takes what lies below 2**-126 for 0, so it is left where a lane does.
    """
    if not possible():
        return by_bits(builder, lanes)
    narrow = builder.bitcast(by_instruction(builder, lanes), vector(I16))
    found = cgutils.alloca_once_value(builder, narrow)
    with builder.if_then(some_tiny(builder, lanes), likely=False):
        builder.store(by_bits(builder, lanes), found)
    return builder.load(found)


def some_tiny(builder: Any, lanes: Any) -> Any:
    """Return whether a lane is not 0, but below 2**-126: in plain operations on its bits, since an
    instruction that tells (AVX-512 DQ) is not what `possible` asks for.
    """
    bits = builder.bitcast(lanes, vector(I32))
    size = builder.and_(bits, constant([0x7FFFFFFF] * WIDTH))
    less = builder.sub(size, constant([1] * WIDTH))  # of 0 the largest number that there is
    each = builder.icmp_unsigned("<", less, constant([0x7FFFFF] * WIDTH))
    return builder.icmp_unsigned("!=", builder.bitcast(each, I16), ir.Constant(I16, 0))


def by_bits(builder: Any, lanes: Any) -> Any:
    bits = builder.bitcast(lanes, vector(I32))
    upper = builder.lshr(bits, constant([16] * WIDTH))
    even = builder.and_(upper, constant([1] * WIDTH))
    half = builder.add(even, constant([0x7FFF] * WIDTH))
    rounded = builder.lshr(builder.add(bits, half), constant([16] * WIDTH))
    quiet = builder.or_(upper, constant([0x40] * WIDTH))  # a NaN must not become infinite
    is_nan = builder.fcmp_unordered("uno", lanes, lanes)
    return builder.trunc(builder.select(is_nan, quiet, rounded), vector(I16))


@cache
def possible() -> bool:
    """Whether the processor that is compiled for multiplies bfloat16 so."""
    return has_feature("avx512bf16")
