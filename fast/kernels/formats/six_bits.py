"""What Q4_K and Q5_K share: d and dmin (float16), then eight scales and minima of 6 bits each."""

import numpy as np

from lockstep.fast.kernels.lanes import field, joined, multiplied, splat, to_floats
from lockstep.fast.kernels.memory import float16_at, octet_at
from lockstep.fast.kernels.octets import two_octets
from lockstep.fast.kernels.parts import inlined


@inlined
def scale_and_offset(blocks, start, group):
    """Return what one of the eight groups is multiplied by, and what is added."""
    scale, minimum = six_bit_pair(blocks, start + 4, group)
    offset = -float16_at(blocks, start + 2) * minimum
    return float16_at(blocks, start) * scale, offset


@inlined
def six_bit_pair(blocks, start, group):
    """Cut a scale and a minimum out of twelve bytes.

    The first four pairs are the low bits of a byte each; the last four keep their top two there.
    """
    low, high = octet_at(blocks, start + group % 4), octet_at(blocks, start + 4 + group % 4)
    if group < 4:
        return np.float32(low & 63), np.float32(high & 63)
    rest = octet_at(blocks, start + 4 + group)
    return np.float32(rest & 15 | low >> 6 << 4), np.float32(rest >> 4 | high >> 6 << 4)


@inlined
def lane_scales_and_offsets(blocks, start, group):
    """Return the same of a group in the first eight lanes, and in the others of the next but one.

    Both are of the first four groups, or of the last.
    """
    low, high = two_octets(blocks, start + 4 + group % 4), two_octets(blocks, start + 8 + group % 4)
    scale, minimum = field(low, 0, 63), field(high, 0, 63)
    if group >= 4:
        rest = two_octets(blocks, start + 8 + group)
        scale = joined(field(rest, 0, 15), field(low, 6, 3), 4)
        minimum = joined(field(rest, 4, 15), field(high, 6, 3), 4)
    offset = multiplied(to_floats(minimum), splat(-float16_at(blocks, start + 2)))
    return multiplied(to_floats(scale), splat(float16_at(blocks, start))), offset
