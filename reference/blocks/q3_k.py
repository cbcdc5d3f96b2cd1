import numpy as np

from lockstep.reference.blocks.bits import halves, planes, spread
from lockstep.reference.shapes import Array


def q3_k(blocks: Array, dtype: np.dtype) -> Array:
    """256 weights in 110 bytes: groups of 16 with a signed step of 6 bits each.

    out[i] = d * (scale[i // 16] - 32) * (code[i] - 4)

    bytes: 32 of top bits, 64 of the codes' low two, 12 of scales (8 of low halves, 4 of the rest),
    d (float16)
    """
    codes = planes(blocks[:, 32:96], run=32, bits=2) | planes(blocks[:, :32], run=32, bits=1) << 2
    scales = planes(blocks[:, 96:104], run=8, bits=4)
    scales = scales | planes(blocks[:, 104:108], run=4, bits=2) << 4
    steps = halves(blocks[:, 108:], dtype) * (scales.astype(dtype) - 32)
    return spread(steps, 16) * (codes.astype(dtype) - 4)
