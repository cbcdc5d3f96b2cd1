import numpy as np

from lockstep.reference.shapes import Hidden, RowIndex


def take_rows(x: Hidden, index: RowIndex) -> Hidden:
    """Keep tokens of each row: (B, L, E), (B,) -> (B, 1, E); or (B, N) -> (B, N, E).

        out[b, n] = x[b, index[b, n]]              (index (B,) is taken for (B, 1))

    Used before the head when logits of some tokens are wanted, such as the last.
    Rounding: none.
    Edges: a negative index counts from the end.
    Raises: IndexError if an index lies outside the row.
    Source: `logits_to_keep` of transformers.
    """
    return x[np.arange(len(x))[:, None], index if index.ndim == 2 else index[:, None]]
