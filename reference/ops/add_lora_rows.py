import numpy as np

from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Hidden, TableDown, TableUp, Tokens


def add_lora_rows(y: Hidden, tokens: Tokens, a: TableDown, b: TableUp, *, scale: float) -> Hidden:
    """Add an adapter's contribution to rows that were looked up in a table.

        out[l] = y[l] + scale * b[tokens[l]] @ a

    b has a row for each token, as the table has; the adapted table is table + scale * b @ a.
    `scale` is the whole factor: nothing is divided by the rank here.
    Rounding: `a` and `b` keep the precision that they are stored in; product and factor are in
    float32 (float64 for float64), rounded once to `y.dtype` before the sum, which rounds again.
    Edges: `b` = 0 gives `y`, with -0 turned into 0; NaN and infinity propagate.
    Varies by model: Gemma scales what was looked up afterwards, and the adapter's part with it.
    Raises: ValueError if the widths or the ranks differ, IndexError for an id beyond the table.
    Source: Hu et al. 2021, arXiv:2106.09685, eq. 3, of a table.
    """
    rank, width = a.shape
    if y.shape != (*tokens.shape, width) or b.shape[1:] != (rank,):
        raise ValueError(f"add_lora_rows: a={a.shape}, b={b.shape} do not make y={y.shape}")
    work = accumulator(y.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        inner = b[tokens.reshape(-1)].astype(work, copy=False)  # (B*L, R)
        delta = (inner @ a.astype(work, copy=False)) * work.type(scale)
        return y + rounded(delta, y.dtype).reshape(y.shape)
