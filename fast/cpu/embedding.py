import numpy as np

from lockstep.fast.cpu.dequantize import dequantize
from lockstep.fast.shapes import Hidden, Tokens, Weight
from lockstep.reference.checkpoint.block_tensor import Packed


def embedding(tokens: Tokens, table: Weight, *, dtype: np.dtype) -> Hidden:
    """Look up one row of the table for each token.

    Differs from `reference.ops.embedding`: in nothing.
    """
    bad = (tokens < 0) | (tokens >= table.shape[0])
    if bad.any():
        raise ValueError(f"token id {tokens[bad][0]}, but should be 0..{table.shape[0] - 1}")
    if isinstance(table, Packed):
        rows = dequantize(table, rows=tokens.reshape(-1), dtype=np.dtype(np.float32))
        rows = rows.reshape(*tokens.shape, table.shape[1])
    else:
        rows = np.take(table, tokens, axis=0)
    with np.errstate(over="ignore", under="ignore"):
        return rows.astype(dtype, copy=False)
