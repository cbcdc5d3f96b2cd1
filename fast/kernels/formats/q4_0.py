"""32 weights in 18 bytes: a float16 scale, then codes around 8; low halves of bytes come first."""

import numpy as np

from lockstep.fast.kernels.formats.nibbles import nibbles
from lockstep.fast.kernels.lanes import float16_at, fma, scalar, splat

GROUP = 32


def share(of, blocks, start, x, at, sums, group, lanes, constant):
    scale = float16_at(blocks, start)
    lanes = fma(splat(scale), nibbles(blocks, start + 2, x, at), lanes)
    return lanes, constant - np.float32(8) * scale * scalar(sums, group)
