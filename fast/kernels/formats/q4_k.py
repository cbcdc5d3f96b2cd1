"""256 weights in 144 bytes: scales and minima of eight groups in 16 bytes, then codes.

Each 32 bytes of codes hold two groups: the low halves of all bytes, then the high halves.
"""

from lockstep.fast.kernels.formats.six_bits import lane_scales_and_offsets, scale_and_offset
from lockstep.fast.kernels.lanes import WIDTH, field
from lockstep.fast.kernels.memory import octets
from lockstep.fast.kernels.octets import many_octets, octet_field

GROUP, ZERO, REST = 32, 8, 1
STRETCH, VECTORS, SHARED, NEAR, TURN = 128, 2, 1, 2, 4


def codes(of, matrix, row, group, index):
    (blocks,) = matrix
    start, part = row * blocks.shape[1] + group // 8 * of.size, group % 8
    octet = start + 16 + part // 2 * 32 + index * WIDTH
    return field(octets(blocks, octet), part % 2 * 4, 15)


def levels(of, matrix, row, group, index):
    (blocks,) = matrix
    return scale_and_offset(blocks, row * blocks.shape[1] + group // 8 * of.size, group % 8)


def many_codes(of, matrix, row, vector):
    (blocks,) = matrix
    start, part = row * blocks.shape[1] + (vector >> 2) * of.size, vector & 3
    return octet_field(many_octets(blocks, start + 16 + part // 2 * 64), part % 2 * 4, 15)


def lane_levels(of, matrix, row, vector):
    (blocks,) = matrix
    start, part = row * blocks.shape[1] + (vector >> 2) * of.size, vector & 3
    return lane_scales_and_offsets(blocks, start, part // 2 * 4 + part % 2)
