import numpy as np

from lockstep.fast import kernels
from lockstep.fast.kernels.again import empty
from lockstep.fast.shapes import Hidden


def add(x: Hidden, y: Hidden) -> Hidden:
    """Add two tensors of one shape. Differs from `reference.ops.add`: in nothing."""
    if x.shape != y.shape:
        raise ValueError(f"add: y.shape={y.shape}, but should be {x.shape} as x has")
    if x.dtype != np.float32 and kernels.available():
        found = kernels.module("plus").summed(x, y)
        if found is not None:
            return found
    with np.errstate(invalid="ignore", over="ignore"):
        return np.add(x, y.astype(x.dtype, copy=False), out=empty(x.shape, x.dtype))
