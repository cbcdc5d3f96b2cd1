import numpy as np

from lockstep.reference.checkpoint.block_tensor import BlockTensor, Packed
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.ops.dequantize_affine import dequantize_affine
from lockstep.reference.ops.dequantize_blocks import dequantize_blocks
from lockstep.reference.ops.dequantize_minifloat import dequantize_minifloat
from lockstep.reference.shapes import Array


def dequantize(weight: Packed, *, rows: slice | Array, dtype: np.dtype) -> Array:
    """Unpack chosen rows of a packed matrix, however it is packed.

        out = the operation for the form of `weight`

    Rounding, Edges: those of that operation.
    Varies by model: nothing else; whoever adds a form adds its operation here.
    Source: that of each form.
    """
    if isinstance(weight, BlockTensor):
        return dequantize_blocks(weight, rows=rows, dtype=dtype)
    if isinstance(weight, MinifloatTensor):
        return dequantize_minifloat(weight, rows=rows, dtype=dtype)
    return dequantize_affine(weight, rows=rows, dtype=dtype)
