"""Codes of 32 weights in sixteen bytes: the low halves of all bytes, then the high halves."""

from lockstep.fast.kernels.lanes import WIDTH, field, joined
from lockstep.fast.kernels.memory import bits_at, octets
from lockstep.fast.kernels.parts import inlined


@inlined
def four_bits(blocks, start, index):
    """Return codes `16 * index` to `16 * index + 15`."""
    return field(octets(blocks, start), index * 4, 15)


@inlined
def five_bits(blocks, tops, start, index):
    """The same with a fifth bit for each code, in the four bytes that begin at `tops`."""
    return joined(four_bits(blocks, start, index), bits_at(blocks, tops, index * WIDTH), 4)
