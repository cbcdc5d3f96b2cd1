import numpy as np

from lockstep.reference.blocks.bits import halves, planes, six_bit_pairs, spread
from lockstep.reference.shapes import Array


def q5_k(blocks: Array, dtype: np.dtype) -> Array:
    """256 weights in 176 bytes: Q4_K with a fifth bit for each code.

    out[i] = d * scale[i // 32] * code[i] - dmin * minimum[i // 32]

    bytes: d, dmin (float16), 12 of scales and minima, 32 of top bits, 128 of low halves
    """
    scales, minima = six_bit_pairs(blocks[:, 4:16])
    scales = scales.astype(dtype) * halves(blocks[:, :2], dtype)
    minima = minima.astype(dtype) * halves(blocks[:, 2:4], dtype)
    codes = planes(blocks[:, 48:], run=32, bits=4) | planes(blocks[:, 16:48], run=32, bits=1) << 4
    return spread(scales, 32) * codes.astype(dtype) - spread(minima, 32)
