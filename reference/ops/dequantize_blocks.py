import numpy as np

from lockstep.reference.blocks import FORMATS
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor
from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Array


def dequantize_blocks(weight: BlockTensor, *, rows: slice | Array, dtype: np.dtype) -> Array:
    """Unpack chosen rows of a matrix in a block format of GGUF.

        out[n, k] = the number of place k % size in block k // size of row n

    A block holds 32 or 256 neighbours of one row, and the steps that scale them.
    `reference/blocks` says what its bytes mean, one file a format.
    Rounding: steps are widened to float32 (float64 for float64), where products are exact; adding
    a minimum rounds once. Then once to `dtype`.
    Edges: a non-finite step spoils its own block, subnormal ones are kept, negative ones flip it.
    Varies by model: the format, tensor by tensor; a Q4_K_M file has Q6_K for a third of them.
    Source: dequantize_row_* of ggml-quants.c in llama.cpp.
    """
    weights, size = BLOCKS[weight.format]
    chosen = np.ascontiguousarray(weight.blocks[rows])  # (N, bytes of a row)
    blocks = chosen.reshape(chosen.size // size, size)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out = FORMATS[weight.format](blocks, accumulator(dtype))  # (blocks, weights)
        return rounded(out, dtype).reshape(*chosen.shape[:-1], chosen.shape[-1] // size * weights)
