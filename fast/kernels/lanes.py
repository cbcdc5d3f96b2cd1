"""Sixteen numbers at once: the type that kernels compute with, and what can be done to it.

Numba's own vectoriser does not see through packed codes and leaves a tenth of the speed. So vectors
are values here: `Floats` and `Ints` are types that Numba knows, and each function below is one or
two instructions of LLVM, which cuts them to the width that the processor has (AVX-512, AVX2, NEON).
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

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


def called(builder: Any, name: str, *values: Any) -> Any:
    """Call one of LLVM's functions of vectors of floats."""
    lanes = values[0].type
    kind = ir.FunctionType(lanes, [lanes] * len(values))
    name = f"llvm.{name}.v{lanes.count}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


def spread(builder: Any, scalar: Any) -> Any:
    nothing = ir.Constant(vector(scalar.type), ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, nothing, constant([0] * WIDTH))


def like(value: Any, element: ir.Type) -> ir.Type:
    return vector(element) if isinstance(value.type, ir.VectorType) else element


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
def joined(_: Any, low: Any, high: Any, shift: Any) -> Any:
    """Put bits above bits: `low | high << shift`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low, high, shift = arguments
        return builder.or_(low, builder.shl(high, spread(builder, builder.trunc(shift, I32))))

    return Ints(Ints, Ints, types.intp), generate


@instruction
def raised(_: Any, codes: Any, more: Any) -> Any:
    """Add one whole number to all lanes."""
    return Ints(Ints, types.intp), lambda context, builder, sig, arguments: builder.add(
        arguments[0], spread(builder, builder.trunc(arguments[1], I32))
    )


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

    return Floats(Floats, Floats, Floats), lambda context, builder, sig, arguments: called(
        builder, "fma", *arguments
    )


def halves_added(builder: Any, value: Any, add: Any) -> Any:
    """Add the upper half of the lanes to the lower one until one lane is left."""
    width = WIDTH
    while width > 1:
        width //= 2
        parts = (constant(list(range(start, start + width))) for start in (0, width))
        value = add(*(builder.shuffle_vector(value, value, part) for part in parts))
    return builder.extract_element(value, ir.Constant(I32, 0))


@instruction
def total(_: Any, lanes: Any) -> Any:
    """Return the sum over the lanes: halves are added to halves."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        return halves_added(builder, value, builder.fadd)

    return types.float32(Floats), generate


@instruction
def rint(_: Any, lanes: Any) -> Any:
    """Round to whole numbers, halves to the even one."""
    return Floats(Floats), lambda context, builder, sig, arguments: called(
        builder, "rint", *arguments
    )


@instruction
def times_two_to(_: Any, lanes: Any, powers: Any) -> Any:
    """Return `lanes * 2**powers` for whole powers from -252, made of the bits of two floats.

    Two, since the result may lie below the smallest power that a full float32 has.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, powers = arguments
        whole = builder.fptosi(powers, vector(I32))
        half = builder.ashr(whole, constant([1] * WIDTH))
        for part in (half, builder.sub(whole, half)):
            exponents = builder.add(part, constant([127] * WIDTH))
            two_to = builder.bitcast(builder.shl(exponents, constant([23] * WIDTH)), vector(FLOAT))
            lanes = builder.fmul(lanes, two_to)
        return lanes

    return Floats(Floats, Floats), generate


@instruction
def unless_below(_: Any, lanes: Any, limit: Any, otherwise: Any) -> Any:
    """Return `otherwise`, but 0 where `lanes` lies below the limit, and NaN where it is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, limit, otherwise = arguments
        nothing = ir.Constant(vector(FLOAT), [0.0] * WIDTH)
        below = builder.fcmp_ordered("<", lanes, spread(builder, limit))
        result = builder.select(below, nothing, otherwise)
        return builder.select(builder.fcmp_unordered("uno", lanes, lanes), lanes, result)

    return Floats(Floats, types.float32, Floats), generate


@instruction
def subtracted(_: Any, left: Any, right: Any) -> Any:
    return Floats(Floats, Floats), lambda context, builder, sig, arguments: builder.fsub(*arguments)


@instruction
def divided(_: Any, left: Any, right: Any) -> Any:
    return Floats(Floats, Floats), lambda context, builder, sig, arguments: builder.fdiv(*arguments)


@instruction
def magnitude(_: Any, lanes: Any) -> Any:
    return Floats(Floats), lambda context, builder, sig, arguments: called(
        builder, "fabs", *arguments
    )


@instruction
def where_below(_: Any, lanes: Any, limit: Any, there: Any, elsewhere: Any) -> Any:
    """Return `there` where `lanes` lies below the limit, `elsewhere` where not or NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, limit, there, elsewhere = arguments
        below = builder.fcmp_ordered("<", lanes, spread(builder, limit))
        return builder.select(below, there, elsewhere)

    return Floats(Floats, types.float32, Floats, Floats), generate


@instruction
def larger(_: Any, lanes: Any, others: Any) -> Any:
    """Return `lanes` where they are larger than `others`, and `others` where not or NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return Floats(Floats, Floats), generate


@instruction
def largest(_: Any, lanes: Any) -> Any:
    """Return the largest of the lanes, none of which is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,), width = arguments, WIDTH
        while width > 1:
            width //= 2
            parts = (constant(list(range(start, start + width))) for start in (0, width))
            low, high = (builder.shuffle_vector(value, value, part) for part in parts)
            value = builder.select(builder.fcmp_ordered(">", low, high), low, high)
        return builder.extract_element(value, ir.Constant(I32, 0))

    return types.float32(Floats), generate


@instruction
def to_ints(_: Any, lanes: Any) -> Any:
    """Return whole numbers as such."""
    return Ints(Floats), lambda context, builder, sig, arguments: builder.fptosi(
        arguments[0], vector(I32)
    )


@instruction
def in_bytes(_: Any, codes: Any) -> Any:
    """Return whole numbers of up to 24 bits as three digits from -128 to 127, a byte each.

    Raised by 128, digits are the bytes of a number that is raised likewise; and what takes 128
    from a byte again is turning its top bit.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tops = constant([0x808080] * WIDTH)
        return builder.xor(builder.add(arguments[0], tops), tops)

    return Ints(Ints), generate


@instruction
def how_many(_: Any, lanes: Any, least: Any, most: Any) -> Any:
    """Count the lanes that lie between two limits, or on one. No NaN does."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, least, most = arguments
        high_enough = builder.fcmp_ordered(">=", lanes, spread(builder, least))
        low_enough = builder.fcmp_ordered("<=", lanes, spread(builder, most))
        each = builder.bitcast(builder.and_(high_enough, low_enough), I16)
        return builder.zext(builder.ctpop(each), ir.IntType(64))

    return types.intp(Floats, types.float32, types.float32), generate


@instruction
def ints_total(_: Any, lanes: Any) -> Any:
    """Return the sum over the lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        return halves_added(builder, value, builder.add)

    return types.int32(Ints), generate


@instruction
def no_ints(_: Any) -> Any:
    """Return zeros."""
    return Ints(), lambda context, builder, sig, arguments: constant([0] * WIDTH)


@instruction
def ints_added(_: Any, left: Any, right: Any) -> Any:
    return Ints(Ints, Ints), lambda context, builder, sig, arguments: builder.add(*arguments)


@instruction
def power_of_two(_: Any, scalar: Any) -> Any:
    """Return the smallest power of two that is no less than a positive float32 that is full."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], I32)
        more = builder.add(bits, ir.Constant(I32, (1 << 23) - 1))
        return builder.bitcast(builder.and_(more, ir.Constant(I32, -(1 << 23))), FLOAT)

    return types.float32(types.float32), generate
