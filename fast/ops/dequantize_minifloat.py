import mlx.core as mx
import numpy as np

from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor


def dequantize_minifloat(weight: MinifloatTensor, *, rows: slice | Array, dtype: mx.Dtype) -> Array:
    """Unpack chosen rows of a matrix in one of MLX's modes mxfp4, mxfp8 and nvfp4.

    Differs from `reference.ops.dequantize_minifloat`: in nothing; MLX is asked for float32, since
    alone it would give bfloat16, and in float16 it would round the scale as well.
    """
    rows = mx.array(rows) if isinstance(rows, np.ndarray) else rows
    packed, scales = weight.packed[rows], weight.scales[rows]
    count = packed.shape[0]
    if not packed.size:
        return mx.zeros((count, weight.shape[1]), dtype)
    if packed.size * 32 // weight.bits % 32:  # MLX wants whole 32 weights, in groups of 16 too
        packed, scales = (mx.concatenate([part, part[:1]]) for part in (packed, scales))
    out = mx.dequantize(
        packed,
        scales,
        group_size=weight.group_size,
        bits=weight.bits,
        mode=weight.mode,
        dtype=mx.float32,
    )
    return out[:count].astype(dtype)
