import numpy as np

from lockstep.fast.shapes import Hidden, RowIndex


def take_rows(x: Hidden, index: RowIndex) -> Hidden:
    """Keep one token, or several, of each row.

    Differs from `reference.ops.take_rows`: in nothing.
    """
    several = index if index.ndim == 2 else index[:, None]
    return x[np.arange(len(x))[:, None], several]
