import numpy as np

from lockstep.fast.blocks import cut
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor


def dequantize_blocks(weight: BlockTensor, *, rows: slice | Array, dtype: np.dtype) -> Array:
    """Unpack chosen rows of a matrix in a block format of GGUF.

    Differs from `reference.ops.dequantize_blocks`: symmetric formats are scaled first and moved to
    zero after it, which is exact too; only the sign of a zero, and what else a block with an
    infinite step holds, can differ.
    """
    weights, size = BLOCKS[weight.format]
    chosen = np.ascontiguousarray(weight.blocks[rows])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        groups = cut(chosen.reshape(chosen.size // size, size), weight.format, np)
        out = groups.codes * groups.scales[..., None]
        if groups.offsets is not None:
            out += groups.offsets[..., None]
        columns = chosen.shape[-1] // size * weights
        return out.astype(dtype, copy=False).reshape(*chosen.shape[:-1], columns)
