"""Sixteen bytes that hold 32 codes: the low halves of all bytes, then the high halves."""

from lockstep.fast.kernels.kernel import inlined
from lockstep.fast.kernels.lanes import (
    WIDTH,
    bits_at,
    field,
    floats,
    fma,
    joined,
    multiplied,
    octets,
    to_floats,
)


@inlined
def nibbles(blocks, start, x, at):
    """Multiply 32 codes of 4 bits by activations; the sum over the lanes is the product."""
    codes = octets(blocks, start)
    some = multiplied(to_floats(field(codes, 0, 15)), floats(x, at))
    return fma(to_floats(field(codes, 4, 15)), floats(x, at + WIDTH), some)


@inlined
def five_bits(blocks, tops, start, x, at):
    """The same with a fifth bit for each code, in the four bytes that begin at `tops`."""
    codes = octets(blocks, start)
    low = joined(field(codes, 0, 15), bits_at(blocks, tops, 0), 4)
    high = joined(field(codes, 4, 15), bits_at(blocks, tops, WIDTH), 4)
    some = multiplied(to_floats(low), floats(x, at))
    return fma(to_floats(high), floats(x, at + WIDTH), some)
