import mlx.core as mx
import numpy as np

from lockstep.fast.blocks import cut
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor


def dequantize_blocks(weight: BlockTensor, *, rows: slice | Array, dtype: mx.Dtype) -> Array:
    """Unpack chosen rows of a matrix in a block format of GGUF, on the device.

    Differs from `reference.ops.dequantize_blocks`: symmetric formats are scaled first and moved to
    zero after it, which is exact too; only the sign of a zero, and what else a block with an
    infinite step holds, can differ. What a device flushes of subnormals is lost.
    """
    weights, size = BLOCKS[weight.format]
    chosen = weight.blocks[mx.array(rows) if isinstance(rows, np.ndarray) else rows]
    shape = (*chosen.shape[:-1], chosen.shape[-1] // size * weights)
    if not chosen.size:
        return mx.zeros(shape, dtype)
    groups = cut(chosen.reshape(chosen.size // size, size), weight.format, mx)
    out = groups.codes.astype(mx.float32) * groups.scales[..., None]
    if groups.offsets is not None:
        out = out + groups.offsets[..., None]
    return out.astype(dtype).reshape(shape)
