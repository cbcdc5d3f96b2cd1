"""32 weights in 20 bytes: scale and offset in float16, then codes."""

from lockstep.fast.kernels.formats.nibbles import four_bits
from lockstep.fast.kernels.memory import float16_at

GROUP, ZERO, REST = 32, 8, 1


def codes(of, matrix, row, group, index):
    (blocks,) = matrix
    return four_bits(blocks, row * blocks.shape[1] + group * of.step + 4, index)


def levels(of, matrix, row, group, index):
    (blocks,) = matrix
    start = row * blocks.shape[1] + group * of.step
    return float16_at(blocks, start), float16_at(blocks, start + 2)
