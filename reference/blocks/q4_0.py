import numpy as np

from lockstep.reference.blocks.bits import halves, planes
from lockstep.reference.shapes import Array


def q4_0(blocks: Array, dtype: np.dtype) -> Array:
    """32 weights in 18 bytes: a step, and codes of 4 bits around 8.

    out[i] = d * (code[i] - 8)        bytes: d (float16), 16 bytes of codes
    """
    codes = planes(blocks[:, 2:], run=16, bits=4).astype(dtype)
    return halves(blocks[:, :2], dtype) * (codes - 8)
