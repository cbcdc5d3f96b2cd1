import numpy as np

from lockstep.reference.blocks.bits import halves, planes, spread
from lockstep.reference.shapes import Array


def q6_k(blocks: Array, dtype: np.dtype) -> Array:
    """256 weights in 210 bytes: groups of 16 with a signed byte as step.

    out[i] = d * scale[i // 16] * (code[i] - 32)

    bytes: 128 of the codes' low halves, 64 of their top two bits, 16 signed scales, d (float16)
    """
    codes = (
        planes(blocks[:, :128], run=64, bits=4) | planes(blocks[:, 128:192], run=32, bits=2) << 4
    )
    steps = blocks[:, 192:208].view(np.int8).astype(dtype) * halves(blocks[:, 208:], dtype)
    return spread(steps, 16) * (codes.astype(dtype) - 32)
