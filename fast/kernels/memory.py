"""Reading sixteen numbers from an array into lanes, and writing them back.

Nothing checks the bounds of an array: the loop of a caller must keep to them.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import make_array

from lockstep.fast.kernels.again import LINE
from lockstep.fast.kernels.lanes import (
    FLOAT,
    HALF,
    I8,
    I16,
    I32,
    WIDTH,
    Floats,
    Ints,
    constant,
    instruction,
    like,
    spread,
    vector,
)

AHEAD = 4096  # bytes: how far in front of itself a row asks for memory
# AMD's cores are quicker with floats, of which a row takes more lines, if it asks for them later.
FLOATS_AHEAD = 1024 if llvm.get_host_cpu_name().startswith("znver") else AHEAD
FIRST, SECOND = 3, 2  # what LLVM calls the caches


def address(context: Any, builder: Any, kind: Any, to: ir.Type, array: Any, at: Any) -> Any:
    start = make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(start, [at]), to.as_pointer())


def as_it_is(builder: Any, value: Any) -> Any:
    return value


def from_float16(builder: Any, value: Any) -> Any:
    """Widen. One alone by its bits: the processor would put it beside what a register last held,
    and so wait for that, which may be a sum of all before.
    """
    if isinstance(value.type, ir.VectorType):
        return builder.fpext(value, like(value, FLOAT))
    bits = builder.zext(builder.bitcast(value, I16), I32)
    size = builder.shl(builder.and_(bits, ir.Constant(I32, 0x7FFF)), ir.Constant(I32, 13))
    full = builder.fmul(builder.bitcast(size, FLOAT), ir.Constant(FLOAT, 2.0**112))
    endless = builder.or_(size, ir.Constant(I32, 0x7F800000))  # infinite, or NaN
    beyond = builder.icmp_unsigned(">=", size, ir.Constant(I32, 0x7C00 << 13))
    size = builder.select(beyond, endless, builder.bitcast(full, I32))
    sign = builder.shl(builder.and_(bits, ir.Constant(I32, 0x8000)), ir.Constant(I32, 16))
    return builder.bitcast(builder.or_(size, sign), FLOAT)


def from_bfloat16(builder: Any, bits: Any) -> Any:
    wide = builder.zext(bits, like(bits, I32))
    shift = constant([16] * WIDTH) if isinstance(bits.type, ir.VectorType) else ir.Constant(I32, 16)
    return builder.bitcast(builder.shl(wide, shift), like(bits, FLOAT))


# Numba has no narrow floats. Their arrays are handed over as integers, a kind of them for each.
SEEN_AS = {np.dtype(np.float16): np.int16, np.dtype(ml_dtypes.bfloat16): np.uint16}
FLOATS = (np.dtype(np.float32), *SEEN_AS)
STORED = {
    types.float32: (FLOAT, as_it_is),
    types.int16: (HALF, from_float16),
    types.uint16: (I16, from_bfloat16),
}


def seen(array: np.ndarray) -> np.ndarray:
    """Return an array as kernels take it."""
    kind = SEEN_AS.get(array.dtype)
    return array if kind is None else array.view(kind)


def reader(widened: Callable[[Any], Any], result: types.Type, *, many: bool) -> Any:
    """Make a function that reads one element of an array, or `WIDTH` neighbours, and widens them.

    `widened(dtype)` is the stored type and what widens it.
    """

    @instruction
    def read(_: Any, array: Any, at: Any) -> Any:
        element, widen = widened(array.dtype)
        stored = vector(element) if many else element

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = address(context, builder, signature.args[0], stored, *arguments)
            return widen(builder, builder.load(place, align=1))

        return result(array, types.intp), generate

    return read


@instruction
def floats_before(_: Any, array: Any, at: Any, end: Any) -> Any:
    """Read sixteen neighbours of an array of floats, of those before `end`: the rest are 0."""
    element, widen = STORED[array.dtype]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, end = arguments
        place = address(context, builder, signature.args[0], vector(element), array, at)
        left = spread(builder, builder.trunc(builder.sub(end, at), I32))
        there = builder.icmp_signed("<", constant(list(range(WIDTH))), left)
        kind = {HALF: "f16", I16: "i16", FLOAT: "f32"}[element]
        given = [place.type, I32, there.type, vector(element)]
        name = f"llvm.masked.load.v{WIDTH}{kind}.p0"
        load = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector(element), given), name
        )
        align = ir.Constant(I32, 1)
        some = builder.call(load, [place, align, there, ir.Constant(vector(element), None)])
        return widen(builder, some)

    return Floats(array, types.intp, types.intp), generate


@instruction
def every(_: Any, of: Any, array: Any, at: Any) -> Any:
    """Read sixteen float32 that lie `of.parts` apart."""
    apart = of.numbers["parts"]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = vector(FLOAT, (WIDTH - 1) * apart + 1)
        place = address(context, builder, signature.args[1], kind, *arguments[1:])
        some = builder.load(place, align=4)
        order = constant([lane * apart for lane in range(WIDTH)])
        return builder.shuffle_vector(some, some, order)

    return Floats(of, array, types.intp), generate


def zero_extended(builder: Any, codes: Any) -> Any:
    return builder.zext(codes, like(codes, I32))


def sign_extended(builder: Any, codes: Any) -> Any:
    return builder.sext(codes, like(codes, I32))


# What lies at a flat index of an array of floats: one as float32, or sixteen.
scalar = reader(STORED.__getitem__, types.float32, many=False)
floats = reader(STORED.__getitem__, Floats, many=True)
ints = reader(lambda _: (I32, as_it_is), Ints, many=True)  # sixteen, of an array of int32
# What lies at a byte: the float16 that begins there, the byte, sixteen bytes, sixteen signed ones.
float16_at = reader(lambda _: (HALF, from_float16), types.float32, many=False)
octet_at = reader(lambda _: (I8, zero_extended), types.int32, many=False)
octets = reader(lambda _: (I8, zero_extended), Ints, many=True)
signed_octets = reader(lambda _: (I8, sign_extended), Ints, many=True)


@instruction
def codes_at(_: Any, of: Any, array: Any, at: Any) -> Any:
    """Cut sixteen codes of `of.bits` out of a little-endian stream that begins at a place."""
    bits = of.numbers["bits"]
    begins = [lane * bits for lane in range(WIDTH)]
    first = [begin // 8 for begin in begins]
    second = [min(octet + 1, 2 * bits - 1) for octet in first]  # the last code ends in its byte

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        stored = vector(I8, 2 * bits)
        place = address(context, builder, signature.args[1], stored, *arguments[1:])
        octets = builder.load(place, align=1)
        low, high = (
            builder.zext(builder.shuffle_vector(octets, octets, constant(part)), vector(I32))
            for part in (first, second)
        )
        pair = builder.or_(low, builder.shl(high, constant([8] * WIDTH)))
        shifted = builder.lshr(pair, constant([begin % 8 for begin in begins]))
        return builder.and_(shifted, constant([2**bits - 1] * WIDTH))

    return Ints(of, array, types.intp), generate


@instruction
def bits_at(_: Any, array: Any, at: Any, first: Any) -> Any:
    """Spread bits over the lanes: bit `first + lane` of the four bytes that begin at a place."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, first = arguments
        word = builder.load(address(context, builder, signature.args[0], I32, array, at), align=1)
        lane = builder.add(constant(list(range(WIDTH))), spread(builder, builder.trunc(first, I32)))
        return builder.and_(builder.lshr(spread(builder, word), lane), constant([1] * WIDTH))

    return Ints(array, types.intp, types.intp), generate


@instruction
def store(_: Any, array: Any, at: Any, lanes: Any) -> Any:
    """Write the lanes to neighbours of an array of float32; to one of narrower elements their bits,
    wherever such an element may lie.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, value = arguments
        place = address(context, builder, signature.args[0], vector(FLOAT), array, at)
        builder.store(value, place, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, Floats), generate


@instruction
def prefetch(_: Any, of: Any, array: Any, at: Any) -> Any:
    """Ask for each line of the cache that a group takes, far ahead of a place of an array.

    Where `apart` elements are read in one go, it is that of those. Behind the array's end lines are
    asked for too, which nobody reads: it does no harm. Floats come to the second cache, which may
    wait for more lines than the first; codes, of which a line takes longer, to the first.
    """
    cache, ahead = (FIRST, AHEAD) if array.dtype == types.uint8 else (SECOND, FLOATS_AHEAD)
    count = of.numbers.get("apart", of.numbers["step"])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = address(context, builder, signature.args[1], I8, *arguments[1:])
        for more in range(0, count * array.dtype.bitwidth // 8, LINE):
            ask(builder, builder.gep(place, [ir.Constant(I32, ahead + more)]), cache)
        return context.get_dummy_value()

    return types.void(of, array, types.intp), generate


@instruction
def ask_for(_: Any, array: Any, at: Any) -> Any:
    """Ask for the line of memory that an element of an array lies on, to the second cache.

    Behind the array's end it does no harm.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ask(builder, address(context, builder, signature.args[0], I8, *arguments), SECOND)
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def ask(builder: Any, place: Any, cache: int) -> None:
    kind = ir.FunctionType(ir.VoidType(), [place.type, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    how = [ir.Constant(I32, number) for number in (0, cache, 1)]  # to read, to where, data
    builder.call(function, [place, *how])


@instruction
def store_parts(_: Any, of: Any, array: Any, at: Any, codes: Any) -> Any:
    """Write the lowest `of.parts` bytes of each lane to neighbours of an array of bytes."""
    element = ir.IntType(8 * of.numbers["parts"])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array, at, codes = arguments
        place = address(context, builder, signature.args[1], vector(element), array, at)
        narrow = codes if element == I32 else builder.trunc(codes, vector(element))
        builder.store(narrow, place, align=1)
        return context.get_dummy_value()

    return types.void(of, array, types.intp, Ints), generate


@instruction
def store_octets(_: Any, array: Any, at: Any, codes: Any) -> Any:
    """Write the lowest byte of each lane to neighbours of an array of bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, codes = arguments
        place = address(context, builder, signature.args[0], vector(I8), array, at)
        builder.store(builder.trunc(codes, vector(I8)), place, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, Ints), generate
