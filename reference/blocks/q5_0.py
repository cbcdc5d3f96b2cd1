import numpy as np

from lockstep.reference.blocks.bits import halves, planes, stream
from lockstep.reference.shapes import Array


def q5_0(blocks: Array, dtype: np.dtype) -> Array:
    """32 weights in 22 bytes: a step, and codes of 5 bits around 16, their top bits apart.

    out[i] = d * (code[i] - 16)       bytes: d (float16), 4 of top bits, 16 of low halves
    """
    codes = planes(blocks[:, 6:], run=16, bits=4) | stream(blocks[:, 2:6]) << 4
    return halves(blocks[:, :2], dtype) * (codes.astype(dtype) - 16)
