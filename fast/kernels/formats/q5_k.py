"""256 weights in 176 bytes: as Q4_K, with 32 bytes of top bits before the codes.

Bit g of a byte of top bits belongs to group g.
"""

from lockstep.fast.kernels.formats.six_bits import lane_scales_and_offsets, scale_and_offset
from lockstep.fast.kernels.lanes import WIDTH, field, joined
from lockstep.fast.kernels.memory import octets
from lockstep.fast.kernels.octets import fields_beside, many_octets, octet_field, octets_joined

GROUP, ZERO, REST = 32, 16, 1
STRETCH, VECTORS, SHARED, NEAR, TURN = 128, 2, 1, 2, 4


def codes(of, matrix, row, group, index):
    (blocks,) = matrix
    start, part = row * blocks.shape[1] + group // 8 * of.size, group % 8
    octet = start + 48 + part // 2 * 32 + index * WIDTH
    low = field(octets(blocks, octet), part % 2 * 4, 15)
    return joined(low, field(octets(blocks, start + 16 + index * WIDTH), part, 1), 4)


def levels(of, matrix, row, group, index):
    (blocks,) = matrix
    return scale_and_offset(blocks, row * blocks.shape[1] + group // 8 * of.size, group % 8)


def many_codes(of, matrix, row, vector):
    (blocks,) = matrix
    start, part = row * blocks.shape[1] + (vector >> 2) * of.size, vector & 3
    low = octet_field(many_octets(blocks, start + 48 + part // 2 * 64), part % 2 * 4, 15)
    group = part // 2 * 4 + part % 2
    return octets_joined(low, fields_beside(blocks, start + 16, group, group + 2, 1), 4)


def lane_levels(of, matrix, row, vector):
    (blocks,) = matrix
    start, part = row * blocks.shape[1] + (vector >> 2) * of.size, vector & 3
    return lane_scales_and_offsets(blocks, start, part // 2 * 4 + part % 2)
