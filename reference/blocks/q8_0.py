import numpy as np

from lockstep.reference.blocks.bits import halves
from lockstep.reference.shapes import Array


def q8_0(blocks: Array, dtype: np.dtype) -> Array:
    """32 weights in 34 bytes: a step, and signed bytes.

    out[i] = d * code[i]              bytes: d (float16), 32 signed codes
    """
    return halves(blocks[:, :2], dtype) * blocks[:, 2:].view(np.int8).astype(dtype)
