import numpy as np

from lockstep.reference.blocks.bits import halves, planes, six_bit_pairs, spread
from lockstep.reference.shapes import Array


def q4_k(blocks: Array, dtype: np.dtype) -> Array:
    """256 weights in 144 bytes: groups of 32 with a step and a minimum of 6 bits each.

    out[i] = d * scale[i // 32] * code[i] - dmin * minimum[i // 32]

    bytes: d, dmin (float16), 12 of scales and minima, 128 of codes
    """
    scales, minima = six_bit_pairs(blocks[:, 4:16])
    scales = scales.astype(dtype) * halves(blocks[:, :2], dtype)
    minima = minima.astype(dtype) * halves(blocks[:, 2:4], dtype)
    codes = planes(blocks[:, 16:], run=32, bits=4).astype(dtype)
    return spread(scales, 32) * codes - spread(minima, 32)
