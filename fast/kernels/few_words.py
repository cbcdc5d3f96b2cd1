"""Sums over 64 codes at a time where the processor adds two products up, as `words` does.

Codes are below 64, over as many as are `shared`: so words have room for the products of all with
one digit, and 32 bits for those with all three.
"""

from typing import Any

from llvmlite import ir
from numba import types

from lockstep.fast.kernels.digits import EXACT
from lockstep.fast.kernels.lanes import (
    I16,
    Ints,
    instruction,
    ints_added,
    no_ints,
    to_floats,
    vector,
)
from lockstep.fast.kernels.octets import MANY, SOME, Octets, many_octets, times
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.weights import many_codes
from lockstep.fast.kernels.words import in_words, weighed

WORDS = vector(I16, MANY // 2)


@instruction
def words_of(_: Any, codes: Any, digits: Any) -> Any:
    """Return the sums of two neighbours' products: words, two bytes each."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(in_words(builder, *arguments), SOME)

    return Octets(Octets, Octets), generate


@instruction
def words_added(_: Any, some: Any, others: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        both = [builder.bitcast(one, WORDS) for one in arguments]
        return builder.bitcast(builder.add(*both), SOME)

    return Octets(Octets, Octets), generate


@instruction
def two_added(_: Any, sums: Any, words: Any) -> Any:
    """Add two neighbours to each lane."""
    return Ints(Ints, Octets), lambda context, builder, sig, arguments: more(builder, arguments, 1)


@instruction
def many_times_two_added(_: Any, sums: Any, words: Any) -> Any:
    """Add two neighbours to each lane, 256 times."""
    return Ints(Ints, Octets), lambda context, builder, sig, arguments: more(
        builder, arguments, 256
    )


def more(builder: Any, sums_and_words: Any, factor: int) -> Any:
    sums, words = sums_and_words
    return builder.add(sums, weighed(builder, builder.bitcast(words, WORDS), factor))


@instruction
def read_anew(_: Any) -> Any:
    """Keep nothing that was read: a product takes a digit from memory as it takes it from a
    register, of which there are few.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        nothing = ir.FunctionType(ir.VoidType(), [])
        builder.asm(nothing, "", "~{memory}", [], True)
        return context.get_dummy_value()

    return types.void(), generate


@inlined
def sums_in_words(of, room, at, begin, matrix, row, first):
    """Return the sums of products of codes of one set of levels, lane by lane, as floats.

    They begin with whole numbers; the digits of the first 64 codes stand at a place of `room`.
    """
    read_anew()
    codes = many_codes(of, matrix, row, first)
    low = words_of(codes, many_octets(room, at))
    middle = words_of(codes, many_octets(room, at + MANY))
    high = words_of(codes, many_octets(room, at + 2 * MANY))
    for one in range(1, of.shared):
        codes, here = many_codes(of, matrix, row, first + one), at + one * EXACT * MANY
        low = words_added(low, words_of(codes, many_octets(room, here)))
        middle = words_added(middle, words_of(codes, many_octets(room, here + MANY)))
        high = words_added(high, words_of(codes, many_octets(room, here + 2 * MANY)))
    higher = two_added(many_times_two_added(no_ints(), high), middle)
    return to_floats(ints_added(two_added(begin, low), times(higher, 256)))
