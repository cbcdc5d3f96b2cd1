"""32 weights in 18 bytes: a float16 scale, then codes around 8."""

import numpy as np

from lockstep.fast.kernels.formats.nibbles import four_bits
from lockstep.fast.kernels.lanes import fma, splat, to_floats
from lockstep.fast.kernels.memory import float16_at

GROUP = 32


def weights(of, matrix, row, group, index):
    (blocks,) = matrix
    start = row * blocks.shape[1] + group * of.step
    scale, codes = float16_at(blocks, start), four_bits(blocks, start + 2, index)
    return fma(to_floats(codes), splat(scale), splat(np.float32(-8) * scale))
