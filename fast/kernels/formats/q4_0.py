"""32 weights in 18 bytes: a float16 scale, then codes around 8."""

import numpy as np

from lockstep.fast.kernels.formats.nibbles import four_bits
from lockstep.fast.kernels.memory import float16_at
from lockstep.fast.kernels.octets import halves_of_groups, octet_field, octets_of_groups

GROUP, ZERO = 32, 8
STRETCH, VECTORS, SHARED, NEAR = 128, 2, 2, 1


def codes(of, matrix, row, group, index):
    (blocks,) = matrix
    return four_bits(blocks, row * blocks.shape[1] + group * of.step + 2, index)


def levels(of, matrix, row, group, index):
    (blocks,) = matrix
    scale = float16_at(blocks, row * blocks.shape[1] + group * of.step)
    return scale, np.float32(-8) * scale


def many_codes(of, matrix, row, vector):
    (blocks,) = matrix
    start = row * blocks.shape[1] + vector // 2 * 4 * of.step
    return octet_field(octets_of_groups(of, blocks, start + 2), vector % 2 * 4, 15)


def lane_levels(of, matrix, row, vector):
    (blocks,) = matrix
    scales = halves_of_groups(of, blocks, row * blocks.shape[1] + vector // 2 * 4 * of.step)
    return scales, scales
