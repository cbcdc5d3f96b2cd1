from lockstep.reference.shapes import KeyPositions, Mask, Positions


def causal_mask(
    query_positions: Positions, key_positions: KeyPositions, *, window: int | None
) -> Mask:
    """Say which keys each query may see: those at or before its own position. True means may see.

        mask[b, 0, i, j] = 0 <= key[b, j] <= query[b, i]  and  query[b, i] - key[b, j] < window

    A key at position -1 is padding and seen by nobody. Positions, not places in the array, decide,
    so the same rule serves prefill, decoding from a cache, and reordered tokens. A rotating cache
    gives keys of (B, L, S), at -1 for the queries from which it hides them.
    Rounding: none; positions are whole numbers.
    Edges: more queries than keys is no special case; a query before every key sees nothing (the
    all-masked row of `softmax`). `window=None` is unlimited; window 1 sees itself alone.
    Varies by model: Mistral, Gemma and some layers of others have a window; it counts the query
    itself.
    Raises: ValueError if the window is not positive.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3; for windows Beltagy et al. 2020,
    arXiv:2004.05150, section 3.1.
    """
    if window is not None and window < 1:
        raise ValueError(f"window={window}, but should be at least 1, or None")
    query, one_for_all = query_positions[:, None, :, None], key_positions.ndim == 2
    key = key_positions[:, None, None] if one_for_all else key_positions[:, None]
    mask = (key >= 0) & (key <= query)
    return mask if window is None else mask & (query - key < window)
