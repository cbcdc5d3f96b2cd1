import mlx.core as mx

from lockstep.fast.ops.dequantize import dequantize
from lockstep.fast.shapes import Hidden, Tokens, Weight
from lockstep.reference.checkpoint.block_tensor import Packed


def embedding(tokens: Tokens, table: Weight, *, dtype: mx.Dtype) -> Hidden:
    """Look up one row of the table for each token; ids are checked on the host.

    Differs from `reference.ops.embedding`: a packed table is unpacked in `dtype`. Ids that a step
    chose on the device stay there.
    """
    ids = tokens if isinstance(tokens, mx.array) else checked(tokens, table.shape[0])
    if not isinstance(table, Packed):
        return table[ids].astype(dtype)
    rows = dequantize(table, rows=ids.flatten(), dtype=dtype)
    return rows.reshape(*ids.shape, table.shape[1])


def checked(tokens: Tokens, rows: int) -> mx.array:
    bad = (tokens < 0) | (tokens >= rows)
    if bad.any():
        raise ValueError(f"token id {tokens[bad][0]}, but should be 0..{rows - 1}")
    return mx.array(tokens.copy())
