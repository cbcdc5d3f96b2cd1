import numpy as np

from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.ops.dequantize import dequantize
from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Hidden, Table, Tokens


def embedding(tokens: Tokens, table: Table, *, dtype: np.dtype) -> Hidden:
    """Look up one row of the table for each token.

        out[b, l] = table[tokens[b, l]]

    Rounding: once, to `dtype`, the dtype that the whole forward pass is computed in. Of a
    packed table only the rows that are asked for are unpacked, in float32 (float64 for float64).
    Edges: an id below 0 or beyond the table is an error (NumPy alone would wrap -1 to the last
    row, MLX would read whatever lies there); no tokens give (B, 0, E).
    Varies by model: Gemma multiplies by sqrt(E) afterwards; GPT-2 adds learned positions.
    Raises: ValueError that names the first bad id.
    Source: Bengio et al. 2003, "A neural probabilistic language model", section 2.
    """
    bad = (tokens < 0) | (tokens >= table.shape[0])
    if bad.any():
        raise ValueError(f"token id {tokens[bad][0]}, but should be 0..{table.shape[0] - 1}")
    if not isinstance(table, Packed):
        return rounded(table[tokens], dtype)
    rows = dequantize(table, rows=tokens.reshape(-1), dtype=accumulator(dtype))
    return rounded(rows, dtype).reshape(*tokens.shape, table.shape[1])
