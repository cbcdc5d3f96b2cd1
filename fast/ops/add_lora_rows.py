import mlx.core as mx

from lockstep.fast.shapes import Hidden, TableDown, TableUp, Tokens


def add_lora_rows(y: Hidden, tokens: Tokens, a: TableDown, b: TableUp, *, scale: float) -> Hidden:
    """Add an adapter's contribution to rows that were looked up in a table.

    Differs from `reference.ops.add_lora_rows`: ids are checked on the host, but those that a step
    chose on the device.
    """
    rank, width = a.shape
    if y.shape != (*tokens.shape, width) or b.shape[1:] != (rank,):
        raise ValueError(f"add_lora_rows: a={a.shape}, b={b.shape} do not make y={y.shape}")
    ids = tokens if isinstance(tokens, mx.array) else checked(tokens, len(b))
    inner = b[ids].astype(mx.float32)  # (B, L, R)
    return y + (scale * (inner @ a.astype(mx.float32))).astype(y.dtype)


def checked(tokens: Tokens, rows: int) -> mx.array:
    if tokens.size and not -rows <= tokens.min() <= tokens.max() < rows:
        raise IndexError(f"token id {tokens.max()}, but the table has {rows} rows")
    return mx.array(tokens.copy())
