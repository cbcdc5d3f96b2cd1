import numpy as np

from lockstep.reference.blocks.bits import planes
from lockstep.reference.shapes import Array

# Every number of 4 bits with a sign, two bits of exponent and one of mantissa.
LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4(blocks: Array, dtype: np.dtype) -> Array:
    """32 weights in 17 bytes: a power of two, and codes of 4 bits that are tiny floats.

    out[i] = 2**(e - 127) * LEVELS[code[i]]      bytes: e, 16 bytes of codes

    e = 255, which the standard calls NaN, is 2**128 here, as it is in llama.cpp. MLX's format of
    the same name keeps its codes in another order.
    Source: OCP Microscaling Formats 1.0, section 5; ggml_e8m0_to_fp32_half of ggml-impl.h.
    """
    exponents = blocks[:, :1].astype(np.int32) - 127
    levels = LEVELS.astype(dtype)[planes(blocks[:, 1:], run=16, bits=4)]
    return np.ldexp(levels, exponents)  # exact: no power that a level would overflow is formed
