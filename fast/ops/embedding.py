import mlx.core as mx

from lockstep.fast.ops.dequantize import dequantize
from lockstep.fast.shapes import Hidden, Tokens, Weight
from lockstep.reference.checkpoint.block_tensor import Packed


def embedding(tokens: Tokens, table: Weight, *, dtype: mx.Dtype) -> Hidden:
    """Look up one row of the table for each token; ids are checked on the host.

    Differs from `reference.ops.embedding`: a packed table is unpacked in `dtype`.
    """
    bad = (tokens < 0) | (tokens >= table.shape[0])
    if bad.any():
        raise ValueError(f"token id {tokens[bad][0]}, but should be 0..{table.shape[0] - 1}")
    if not isinstance(table, Packed):
        return table[mx.array(tokens.copy())].astype(dtype)
    rows = dequantize(table, rows=tokens.flatten(), dtype=dtype)
    return rows.reshape(*tokens.shape, table.shape[1])
