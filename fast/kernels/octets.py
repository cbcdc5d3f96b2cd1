"""Sixty-four codes at once, a byte each, and what products of them with digits take.

Four neighbours are one of sixteen lanes: an instruction of AVX-512 (VNNI) adds their products up,
or two of AVX2.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import models, register_model

from lockstep.fast.kernels import tile, words
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
    spread,
    vector,
)
from lockstep.fast.kernels.memory import address
from lockstep.fast.kernels.tile import adds_two, beside, from_digits

dotted = words.dotted if adds_two() else tile.dotted
MANY = 64
SOME, EVERY = vector(I8, MANY), constant([0] * MANY)


class OctetsType(types.Type):
    """Sixty-four bytes, held in registers."""

    def __init__(self):
        super().__init__("Octets")


Octets = OctetsType()


@register_model(OctetsType)
class OctetsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: OctetsType):
        super().__init__(manager, kind, SOME)


def all_of(builder: Any, number: Any) -> Any:
    """Spread a whole number over the bytes."""
    return builder.shuffle_vector(*[spread(builder, builder.trunc(number, I8))] * 2, EVERY)


@instruction
def many_octets(_: Any, array: Any, at: Any) -> Any:
    """Read 64 neighbours of an array of bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = address(context, builder, signature.args[0], SOME, *arguments)
        return builder.load(place, align=1)

    return Octets(array, types.intp), generate


@instruction
def octets_of_groups(_: Any, of: Any, array: Any, at: Any) -> Any:
    """Read 64 bytes in equal parts of neighbouring groups, which lie `of.step` bytes apart."""
    count = of.numbers["stretch"] // of.numbers["group"]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array, at = arguments
        part, parts = vector(I8, MANY // count), []
        for group in range(count):
            start = builder.add(at, ir.Constant(at.type, group * of.numbers["step"]))
            place = address(context, builder, signature.args[1], part, array, start)
            parts.append(builder.load(place, align=1))
        return beside(builder, parts)

    return Octets(of, array, types.intp), generate


@instruction
def halves_of_groups(_: Any, of: Any, array: Any, at: Any) -> Any:
    """Spread float16s over lanes: one of each of neighbouring groups, `of.step` bytes apart.

    Of the array 64 bytes are read, which must be there.
    """
    count, apart = of.numbers["stretch"] // of.numbers["group"], of.numbers["step"] // 2
    order = [lane * count // WIDTH * apart for lane in range(WIDTH)]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        stored = vector(I16, MANY // 2)
        place = address(context, builder, signature.args[1], stored, *arguments[1:])
        words = builder.load(place, align=1)
        chosen = builder.shuffle_vector(words, words, constant(order))
        return builder.fpext(builder.bitcast(chosen, vector(HALF)), vector(FLOAT))

    return Floats(of, array, types.intp), generate


@instruction
def scales_of_spans(_: Any, of: Any, scales: Any, at: Any) -> Any:
    """Spread floats over lanes: one for each span of the columns that 64 bytes hold.

    Those of a group's other spans lie sixteen apart.
    """
    span, group = of.numbers["span"], of.numbers["group"]
    spans, each = of.numbers["stretch"] // span, max(group // span, 1)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, scales, at = arguments
        parts = []
        for index in range(spans):
            behind = ir.Constant(at.type, index % each * WIDTH + index // each)
            place = address(
                context, builder, signature.args[1], FLOAT, scales, builder.add(at, behind)
            )
            one = spread(builder, builder.load(place, align=4))
            few = constant(list(range(WIDTH // spans)))
            parts.append(builder.shuffle_vector(one, one, few))
        return beside(builder, parts)

    return Floats(of, scales, types.intp), generate


@instruction
def octet_field(_: Any, octets: Any, shift: Any, mask: Any) -> Any:
    """Cut the same bits out of each byte: `octets >> shift & mask`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        octets, shift, mask = arguments
        return builder.and_(builder.lshr(octets, all_of(builder, shift)), all_of(builder, mask))

    return Octets(Octets, types.intp, types.intp), generate


@instruction
def octets_joined(_: Any, low: Any, high: Any, shift: Any) -> Any:
    """Put bits above bits: `low | high << shift`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low, high, shift = arguments
        return builder.or_(low, builder.shl(high, all_of(builder, shift)))

    return Octets(Octets, Octets, types.intp), generate


@instruction
def fields_beside(_: Any, array: Any, at: Any, shift: Any, other: Any, mask: Any) -> Any:
    """Cut bits out of 32 bytes, and beside them others out of the same ones."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, *shifts, mask = arguments
        half = vector(I8, MANY // 2)
        some = builder.load(address(context, builder, signature.args[0], half, array, at), align=1)
        order = constant([0] * (MANY // 2))
        parts = []
        for shift in shifts:
            spread_out = spread(builder, builder.trunc(shift, I8))
            parts.append(builder.lshr(some, builder.shuffle_vector(spread_out, spread_out, order)))
        return builder.and_(beside(builder, parts), all_of(builder, mask))

    return Octets(array, types.intp, types.intp, types.intp, types.intp), generate


@instruction
def two_octets(_: Any, array: Any, at: Any) -> Any:
    """Spread a byte over the first eight lanes, and the next but one over the others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = address(context, builder, signature.args[0], vector(I8, 3), *arguments)
        some = builder.load(place, align=1)
        order = constant([lane // 8 * 2 for lane in range(WIDTH)])
        return builder.zext(builder.shuffle_vector(some, some, order), vector(I32))

    return Ints(array, types.intp), generate


@instruction
def four_signed(_: Any, array: Any, at: Any) -> Any:
    """Spread four signed bytes, each over four lanes, as floats."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = address(context, builder, signature.args[0], vector(I8, 4), *arguments)
        some = builder.load(place, align=1)
        order = constant([lane // 4 for lane in range(WIDTH)])
        return builder.sitofp(builder.shuffle_vector(some, some, order), vector(FLOAT))

    return Floats(array, types.intp), generate


@instruction
def above_zero(_: Any, octets: Any) -> Any:
    """Add 128 to bytes that are signed."""
    return Octets(Octets), lambda context, builder, sig, arguments: builder.xor(
        arguments[0], ir.Constant(SOME, [128] * MANY)
    )


@instruction
def same_octets(_: Any, number: Any) -> Any:
    """Return one number in all bytes."""
    return Octets(types.intp), lambda context, builder, sig, arguments: all_of(
        builder, arguments[0]
    )


@instruction
def products_added(_: Any, sums: Any, codes: Any, digits: Any) -> Any:
    """Add to each lane the products of its four codes with digits."""
    return Ints(Ints, Octets, Octets), lambda context, builder, sig, arguments: dotted(
        builder, *arguments
    )


@instruction
def put_together(_: Any, low: Any, high: Any) -> Any:
    """Return floats of sums over the lowest digit, and over those that count 256 times as much."""
    return Floats(Ints, Ints), lambda context, builder, sig, arguments: from_digits(
        builder, list(arguments)
    )


@instruction
def times(_: Any, lanes: Any, factor: Any) -> Any:
    """Multiply whole numbers by one."""
    return Ints(Ints, types.intp), lambda context, builder, sig, arguments: builder.mul(
        arguments[0], spread(builder, builder.trunc(arguments[1], I32))
    )


@instruction
def store_ints(_: Any, array: Any, at: Any, lanes: Any) -> Any:
    """Write the lanes to neighbours of an array of int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, value = arguments
        place = address(context, builder, signature.args[0], vector(I32), array, at)
        builder.store(value, place, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, Ints), generate
