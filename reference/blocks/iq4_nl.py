import numpy as np

from lockstep.reference.blocks.bits import halves, planes
from lockstep.reference.shapes import Array

# Denser around zero, where most weights are. Source: kvalues_iq4nl of ggml-common.h.
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])


def iq4_nl(blocks: Array, dtype: np.dtype) -> Array:
    """32 weights in 18 bytes: a step, and codes of 4 bits that name one of 16 uneven levels.

    out[i] = d * LEVELS[code[i]]      bytes: d (float16), 16 bytes of codes
    """
    levels = LEVELS.astype(dtype)[planes(blocks[:, 2:], run=16, bits=4)]
    return halves(blocks[:, :2], dtype) * levels
