import mlx.core as mx

from lockstep.fast.shapes import Hidden, TableDown, TableUp, Tokens


def add_lora_rows(y: Hidden, tokens: Tokens, a: TableDown, b: TableUp, *, scale: float) -> Hidden:
    """Add to the rows that were looked up in a table what an adapter adds to these rows.

    Differs from `reference.ops.add_lora_rows`: ids are checked on the host.
    """
    rank, width = a.shape
    if y.shape != (*tokens.shape, width) or b.shape[1:] != (rank,):
        raise ValueError(f"add_lora_rows: a={a.shape}, b={b.shape} do not make y={y.shape}")
    if tokens.size and not -len(b) <= tokens.min() <= tokens.max() < len(b):
        raise IndexError(f"token id {tokens.max()}, but the table has {len(b)} rows")
    inner = b[mx.array(tokens.copy())].astype(mx.float32)  # (B, L, R)
    return y + (scale * (inner @ a.astype(mx.float32))).astype(y.dtype)
