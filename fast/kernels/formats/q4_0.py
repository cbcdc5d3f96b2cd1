"""32 weights in 18 bytes: a float16 scale, then codes around 8."""

import numpy as np

from lockstep.fast.kernels.formats.nibbles import four_bits
from lockstep.fast.kernels.memory import float16_at

GROUP, ZERO = 32, 8


def codes(of, matrix, row, group, index):
    (blocks,) = matrix
    return four_bits(blocks, row * blocks.shape[1] + group * of.step + 2, index)


def levels(of, matrix, row, group, index):
    (blocks,) = matrix
    scale = float16_at(blocks, row * blocks.shape[1] + group * of.step)
    return scale, np.float32(-8) * scale
