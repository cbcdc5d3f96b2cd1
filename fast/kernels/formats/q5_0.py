"""32 weights in 22 bytes: a float16 scale, 32 top bits, then low bits; codes lie around 16."""

import numpy as np

from lockstep.fast.kernels.formats.nibbles import five_bits
from lockstep.fast.kernels.lanes import float16_at, fma, scalar, splat

GROUP = 32


def share(of, blocks, start, x, at, sums, group, lanes, constant):
    scale = float16_at(blocks, start)
    lanes = fma(splat(scale), five_bits(blocks, start + 2, start + 6, x, at), lanes)
    return lanes, constant - np.float32(16) * scale * scalar(sums, group)
