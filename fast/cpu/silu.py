import numpy as np

from lockstep.fast import kernels
from lockstep.fast.shapes import Hidden


def silu(x: Hidden) -> Hidden:
    """Multiply each value by its own sigmoid.

    Differs from `reference.ops.silu`: -inf is kept from the product instead of mended after it.
    """
    if kernels.available():
        activated = kernels.module("activate").activated
        found = activated(x.astype(np.float32, copy=False), None, gelu=False)
        if found is not None:
            return found.astype(x.dtype, copy=False)
    wide = x.astype(np.float32, copy=False)
    with np.errstate(invalid="ignore", under="ignore"):
        power = np.exp(-np.abs(wide))
        out = np.where(wide < 0, power, 1) / (1 + power)
        out *= np.maximum(wide, np.finfo(np.float32).min)  # -inf * 0 would be NaN
    return out.astype(x.dtype, copy=False)
