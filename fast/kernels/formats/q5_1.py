"""32 weights in 24 bytes: scale and offset in float16, 32 top bits, then low bits."""

from lockstep.fast.kernels.formats.nibbles import five_bits
from lockstep.fast.kernels.memory import float16_at

GROUP, ZERO, REST = 32, 16, 1


def codes(of, matrix, row, group, index):
    (blocks,) = matrix
    start = row * blocks.shape[1] + group * of.step
    return five_bits(blocks, start + 4, start + 8, index)


def levels(of, matrix, row, group, index):
    (blocks,) = matrix
    start = row * blocks.shape[1] + group * of.step
    return float16_at(blocks, start), float16_at(blocks, start + 2)
