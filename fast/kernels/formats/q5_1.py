"""32 weights in 24 bytes: scale and offset in float16, 32 top bits, then low bits."""

from lockstep.fast.kernels.formats.nibbles import five_bits
from lockstep.fast.kernels.lanes import fma, splat, to_floats
from lockstep.fast.kernels.memory import float16_at

GROUP = 32


def weights(of, matrix, row, group, index):
    (blocks,) = matrix
    start = row * blocks.shape[1] + group * of.step
    scale, offset = splat(float16_at(blocks, start)), splat(float16_at(blocks, start + 2))
    return fma(to_floats(five_bits(blocks, start + 4, start + 8, index)), scale, offset)
