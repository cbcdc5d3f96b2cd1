import numpy as np

from lockstep.reference.blocks.bits import halves, planes, spread
from lockstep.reference.shapes import Array


def q2_k(blocks: Array, dtype: np.dtype) -> Array:
    """256 weights in 84 bytes: groups of 16 with a step and a minimum of 4 bits each.

    out[i] = d * scale[i // 16] * code[i] - dmin * minimum[i // 16]

    bytes: 16 of scales (low halves) and minima (high), 64 of codes, d, dmin (float16)
    """
    scales = (blocks[:, :16] & 15).astype(dtype) * halves(blocks[:, 80:82], dtype)
    minima = (blocks[:, :16] >> 4).astype(dtype) * halves(blocks[:, 82:84], dtype)
    codes = planes(blocks[:, 16:80], run=32, bits=2).astype(dtype)
    return spread(scales, 16) * codes - spread(minima, 16)
