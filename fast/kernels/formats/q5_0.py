"""32 weights in 22 bytes: a float16 scale, 32 top bits, then low bits; codes lie around 16."""

import numpy as np

from lockstep.fast.kernels.formats.nibbles import five_bits
from lockstep.fast.kernels.lanes import fma, splat, to_floats
from lockstep.fast.kernels.memory import float16_at

GROUP = 32


def weights(of, matrix, row, group, index):
    (blocks,) = matrix
    start = row * blocks.shape[1] + group * of.step
    scale, codes = float16_at(blocks, start), five_bits(blocks, start + 2, start + 6, index)
    return fma(to_floats(codes), splat(scale), splat(np.float32(-16) * scale))
