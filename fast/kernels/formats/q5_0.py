"""32 weights in 22 bytes: a float16 scale, 32 top bits, then low bits; codes lie around 16."""

import numpy as np

from lockstep.fast.kernels.formats.nibbles import five_bits
from lockstep.fast.kernels.memory import float16_at

GROUP, ZERO = 32, 16


def codes(of, matrix, row, group, index):
    (blocks,) = matrix
    start = row * blocks.shape[1] + group * of.step
    return five_bits(blocks, start + 2, start + 6, index)


def levels(of, matrix, row, group, index):
    (blocks,) = matrix
    scale = float16_at(blocks, row * blocks.shape[1] + group * of.step)
    return scale, np.float32(-16) * scale
