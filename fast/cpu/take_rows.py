import numpy as np

from lockstep.fast.shapes import Hidden, RowIndex


def take_rows(x: Hidden, index: RowIndex) -> Hidden:
    """Keep one token of each row. Differs from `reference.ops.take_rows`: in nothing."""
    return np.take_along_axis(x, np.asarray(index)[:, None, None], axis=1)
