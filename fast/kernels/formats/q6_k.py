"""256 weights in 210 bytes: low halves of codes, their top two bits, signed scales, d (float16).

The codes lie around 32. A half of the block is 128 weights: 64 bytes of low halves, of all bytes
first the low four bits, and 32 bytes of top bits, of all bytes first the lowest two.
"""

import numpy as np

from lockstep.fast.kernels.lanes import WIDTH, field, joined, multiplied, splat
from lockstep.fast.kernels.memory import float16_at, octet_at, octets
from lockstep.fast.kernels.octets import (
    fields_beside,
    four_signed,
    many_octets,
    octet_field,
    octets_joined,
)

GROUP, ZERO, SPAN = 128, 32, 16
STRETCH, VECTORS, SHARED, NEAR, TURN = 64, 1, 1, 4, 4


def codes(of, matrix, row, group, index):
    (blocks,) = matrix
    start, half = row * blocks.shape[1] + group // 2 * of.size, group % 2
    low = octets(blocks, start + half * 64 + index % 4 * WIDTH)
    top = octets(blocks, start + 128 + half * 32 + index % 2 * WIDTH)
    return joined(field(low, index // 4 * 4, 15), field(top, index // 2 * 2, 3), 4)


def levels(of, matrix, row, group, index):
    (blocks,) = matrix
    start, half = row * blocks.shape[1] + group // 2 * of.size, group % 2
    signed = np.int8(octet_at(blocks, start + 192 + half * 8 + index))
    scale = float16_at(blocks, start + 208) * np.float32(signed)
    return scale, np.float32(-32) * scale


def many_codes(of, matrix, row, vector):
    (blocks,) = matrix
    start, part = row * blocks.shape[1] + (vector >> 2) * of.size, vector & 3
    low = octet_field(many_octets(blocks, start + part // 2 * 64), part % 2 * 4, 15)
    first = part % 2 * 4
    top = fields_beside(blocks, start + 128 + part // 2 * 32, first, first + 2, 3)
    return octets_joined(low, top, 4)


def lane_levels(of, matrix, row, vector):
    (blocks,) = matrix
    start, part = row * blocks.shape[1] + (vector >> 2) * of.size, vector & 3
    scale = splat(float16_at(blocks, start + 208))
    scales = multiplied(four_signed(blocks, start + 192 + part * 4), scale)
    return scales, scales
