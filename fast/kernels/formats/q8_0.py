"""32 weights in 34 bytes: a float16 scale, then signed bytes."""

import numpy as np

from lockstep.fast.kernels.lanes import WIDTH, multiplied, raised, splat, to_floats
from lockstep.fast.kernels.memory import float16_at, signed_octets
from lockstep.fast.kernels.octets import above_zero, halves_of_groups, octets_of_groups

GROUP, ZERO = 32, 128
STRETCH, VECTORS, SHARED, NEAR = 64, 1, 1, 1


def weights(of, matrix, row, group, index):
    (blocks,) = matrix
    start = row * blocks.shape[1] + group * of.step
    some = to_floats(signed_octets(blocks, start + 2 + index * WIDTH))
    return multiplied(some, splat(float16_at(blocks, start)))


def codes(of, matrix, row, group, index):
    (blocks,) = matrix
    start = row * blocks.shape[1] + group * of.step
    return raised(signed_octets(blocks, start + 2 + index * WIDTH), 128)


def levels(of, matrix, row, group, index):
    (blocks,) = matrix
    scale = float16_at(blocks, row * blocks.shape[1] + group * of.step)
    return scale, np.float32(-128) * scale


def many_codes(of, matrix, row, vector):
    (blocks,) = matrix
    start = row * blocks.shape[1] + vector * 2 * of.step
    return above_zero(octets_of_groups(of, blocks, start + 2))


def lane_levels(of, matrix, row, vector):
    (blocks,) = matrix
    scales = halves_of_groups(of, blocks, row * blocks.shape[1] + vector * 2 * of.step)
    return scales, scales
