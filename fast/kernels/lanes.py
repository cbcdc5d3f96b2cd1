"""Sixteen numbers at once: the type that kernels compute with, and what can be done to it.

Numba's own vectoriser does not see through packed codes and leaves a tenth of the speed. So vectors
are values here: `Floats` and `Ints` are types that Numba knows, and each function below is one or
two instructions of LLVM, which cuts them to the width that the processor has (AVX-512, AVX2, NEON).
An array is read without a check of its bounds: the caller's loop must keep to them.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import make_array

WIDTH = 16
FLOAT, HALF = ir.FloatType(), ir.HalfType()
I8, I16, I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make what a kernel may call. The first parameter is Numba's own: no caller gives it."""
    return intrinsic(function)


class Lanes(types.Type):
    """A vector of `WIDTH` elements, held in registers."""

    def __init__(self, name: str, element: ir.Type):
        super().__init__(name)
        self.element = element


Floats, Ints = Lanes("Floats", FLOAT), Lanes("Ints", I32)


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes):
        super().__init__(manager, lanes, vector(lanes.element))


def vector(element: ir.Type, width: int = WIDTH) -> ir.VectorType:
    return ir.VectorType(element, width)


def constant(values: list[int]) -> ir.Constant:
    return ir.Constant(vector(I32, len(values)), values)


def spread(builder: Any, scalar: Any) -> Any:
    nothing = ir.Constant(vector(scalar.type), ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, nothing, constant([0] * WIDTH))


def address(context: Any, builder: Any, kind: Any, to: ir.Type, array: Any, at: Any) -> Any:
    start = make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(start, [at]), to.as_pointer())


def as_it_is(builder: Any, value: Any) -> Any:
    return value


def from_float16(builder: Any, value: Any) -> Any:
    return builder.fpext(value, like(value, FLOAT))


def from_bfloat16(builder: Any, bits: Any) -> Any:
    wide = builder.zext(bits, like(bits, I32))
    shift = constant([16] * WIDTH) if isinstance(bits.type, ir.VectorType) else ir.Constant(I32, 16)
    return builder.bitcast(builder.shl(wide, shift), like(bits, FLOAT))


def like(value: Any, element: ir.Type) -> ir.Type:
    return vector(element) if isinstance(value.type, ir.VectorType) else element


# Numba has no narrow floats. Their arrays are handed over as integers, a kind of them for each.
SEEN_AS = {np.dtype(np.float16): np.int16, np.dtype(ml_dtypes.bfloat16): np.uint16}
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


def zero_extended(builder: Any, codes: Any) -> Any:
    return builder.zext(codes, like(codes, I32))


def sign_extended(builder: Any, codes: Any) -> Any:
    return builder.sext(codes, like(codes, I32))


# What lies at a flat index of an array of floats: one as float32, or sixteen.
scalar = reader(STORED.__getitem__, types.float32, many=False)
floats = reader(STORED.__getitem__, Floats, many=True)
# What lies at a byte: the float16 that begins there, the byte, sixteen bytes, sixteen signed ones.
float16_at = reader(lambda _: (HALF, from_float16), types.float32, many=False)
octet_at = reader(lambda _: (I8, zero_extended), types.int32, many=False)
octets = reader(lambda _: (I8, zero_extended), Ints, many=True)
signed_octets = reader(lambda _: (I8, sign_extended), Ints, many=True)


@instruction
def splat(_: Any, scalar: Any) -> Any:
    """Return the same float in all lanes."""
    return Floats(types.float32), lambda context, builder, sig, arguments: spread(
        builder, arguments[0]
    )


@instruction
def field(_: Any, codes: Any, shift: Any, mask: Any) -> Any:
    """Cut the same bits out of each lane: `codes >> shift & mask`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, *both = arguments
        shift, mask = (spread(builder, builder.trunc(one, I32)) for one in both)
        return builder.and_(builder.lshr(codes, shift), mask)

    return Ints(Ints, types.intp, types.intp), generate


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
def joined(_: Any, low: Any, high: Any, shift: Any) -> Any:
    """Put bits above bits: `low | high << shift`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low, high, shift = arguments
        return builder.or_(low, builder.shl(high, spread(builder, builder.trunc(shift, I32))))

    return Ints(Ints, Ints, types.intp), generate


@instruction
def to_floats(_: Any, codes: Any) -> Any:
    return Floats(Ints), lambda context, builder, sig, arguments: builder.sitofp(
        arguments[0], vector(FLOAT)
    )


@instruction
def multiplied(_: Any, left: Any, right: Any) -> Any:
    return Floats(Floats, Floats), lambda context, builder, sig, arguments: builder.fmul(*arguments)


@instruction
def added(_: Any, left: Any, right: Any) -> Any:
    return Floats(Floats, Floats), lambda context, builder, sig, arguments: builder.fadd(*arguments)


@instruction
def fma(_: Any, left: Any, right: Any, added: Any) -> Any:
    """Return `left * right + added`, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(vector(FLOAT), [vector(FLOAT)] * 3)
        name = f"llvm.fma.v{WIDTH}f32"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

    return Floats(Floats, Floats, Floats), generate


@instruction
def total(_: Any, lanes: Any) -> Any:
    """Return the sum over the lanes: halves are added to halves."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,), width = arguments, WIDTH
        while width > 1:
            width //= 2
            parts = (constant(list(range(start, start + width))) for start in (0, width))
            low, high = (builder.shuffle_vector(value, value, part) for part in parts)
            value = builder.fadd(low, high)
        return builder.extract_element(value, ir.Constant(I32, 0))

    return types.float32(Floats), generate


@instruction
def store(_: Any, array: Any, at: Any, lanes: Any) -> Any:
    """Write the lanes to neighbours of an array of float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, value = arguments
        place = address(context, builder, signature.args[0], vector(FLOAT), array, at)
        builder.store(value, place, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, Floats), generate


@instruction
def prefetch(_: Any, array: Any, at: Any) -> Any:
    """Ask for a place of an array, even one behind its end, before it is needed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = address(context, builder, signature.args[0], I8, *arguments)
        kind = ir.FunctionType(ir.VoidType(), [place.type, I32, I32, I32])
        name = "llvm.prefetch.p0"
        how = [ir.Constant(I32, number) for number in (0, 3, 1)]  # to read, to keep, data
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [place, *how])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate
