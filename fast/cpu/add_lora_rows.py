import numpy as np

from lockstep.fast.shapes import Hidden, TableDown, TableUp, Tokens


def add_lora_rows(y: Hidden, tokens: Tokens, a: TableDown, b: TableUp, *, scale: float) -> Hidden:
    """Add an adapter's contribution to rows that were looked up in a table.

    Differs from `reference.ops.add_lora_rows`: in nothing.
    """
    rank, width = a.shape
    if y.shape != (*tokens.shape, width) or b.shape[1:] != (rank,):
        raise ValueError(f"add_lora_rows: a={a.shape}, b={b.shape} do not make y={y.shape}")
    with np.errstate(invalid="ignore", over="ignore"):
        inner = np.take(b, tokens.reshape(-1), axis=0).astype(np.float32, copy=False)
        delta = inner @ a.astype(np.float32, copy=False) * np.float32(scale)
        return y + delta.astype(y.dtype, copy=False).reshape(y.shape)
