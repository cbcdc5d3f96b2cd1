import numpy as np

from lockstep.reference.blocks.bits import halves, planes, stream
from lockstep.reference.shapes import Array


def q5_1(blocks: Array, dtype: np.dtype) -> Array:
    """32 weights in 24 bytes: a step, a minimum, and codes of 5 bits, their top bits apart.

    out[i] = d * code[i] + m          bytes: d, m (float16), 4 of top bits, 16 of low halves
    """
    codes = (planes(blocks[:, 8:], run=16, bits=4) | stream(blocks[:, 4:8]) << 4).astype(dtype)
    return halves(blocks[:, :2], dtype) * codes + halves(blocks[:, 2:4], dtype)
