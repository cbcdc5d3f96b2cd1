import mlx.core as mx
import numpy as np

from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.quantized import QuantizedTensor


def dequantize_affine(weight: QuantizedTensor, *, rows: slice | Array, dtype: mx.Dtype) -> Array:
    """Unpack chosen rows of an MLX affine-quantised matrix.

    Differs from `reference.ops.dequantize_affine`: in nothing; scales and biases are widened to
    `dtype` before MLX unpacks, which else would round twice to theirs.
    """
    rows = mx.array(rows) if isinstance(rows, np.ndarray) else rows
    packed = weight.packed[rows]
    if not packed.size:
        return mx.zeros((packed.shape[0], weight.shape[1]), dtype)
    return mx.dequantize(
        packed,
        weight.scales[rows].astype(dtype),
        weight.biases[rows].astype(dtype),
        group_size=weight.group_size,
        bits=weight.bits,
    )
