import numpy as np

from lockstep.fast.shapes import Hidden


def scale(x: Hidden, *, by: float) -> Hidden:
    """Multiply every value by one number. Differs from `reference.ops.scale`: in nothing."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.multiply(x, np.asarray(by).astype(x.dtype))
