import mlx.core as mx

from lockstep.fast.ops.dequantize_affine import dequantize_affine
from lockstep.fast.ops.dequantize_blocks import dequantize_blocks
from lockstep.fast.ops.dequantize_minifloat import dequantize_minifloat
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.block_tensor import BlockTensor, Packed
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor


def dequantize(weight: Packed, *, rows: slice | Array, dtype: mx.Dtype) -> Array:
    """Unpack chosen rows of a packed matrix, however it is packed.

    Differs from `reference.ops.dequantize`: in nothing.
    """
    if isinstance(weight, BlockTensor):
        return dequantize_blocks(weight, rows=rows, dtype=dtype)
    if isinstance(weight, MinifloatTensor):
        return dequantize_minifloat(weight, rows=rows, dtype=dtype)
    return dequantize_affine(weight, rows=rows, dtype=dtype)
