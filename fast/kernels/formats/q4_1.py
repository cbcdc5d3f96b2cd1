"""32 weights in 20 bytes: scale and offset in float16, then codes."""

from lockstep.fast.kernels.formats.nibbles import four_bits
from lockstep.fast.kernels.lanes import fma, splat, to_floats
from lockstep.fast.kernels.memory import float16_at

GROUP = 32


def weights(of, matrix, row, group, index):
    (blocks,) = matrix
    start = row * blocks.shape[1] + group * of.step
    scale, offset = splat(float16_at(blocks, start)), splat(float16_at(blocks, start + 2))
    return fma(to_floats(four_bits(blocks, start + 4, index)), scale, offset)
