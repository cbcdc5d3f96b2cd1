import numpy as np

from lockstep.reference.blocks.bits import halves, planes
from lockstep.reference.shapes import Array


def q4_1(blocks: Array, dtype: np.dtype) -> Array:
    """32 weights in 20 bytes: a step, a minimum, and codes of 4 bits.

    out[i] = d * code[i] + m          bytes: d, m (float16), 16 bytes of codes
    """
    codes = planes(blocks[:, 4:], run=16, bits=4).astype(dtype)
    return halves(blocks[:, :2], dtype) * codes + halves(blocks[:, 2:4], dtype)
