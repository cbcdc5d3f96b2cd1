"""Which arrays the kernels of norms, gates and rope read as they lie: float32, or all bfloat16."""

import ml_dtypes
import numpy as np

from lockstep.fast.kernels.kernel import usable
from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.memory import seen
from lockstep.fast.shapes import Array

KINDS = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16))


def alike(*arrays: Array) -> list[Array] | None:
    """Return arrays as kernels take them, if they are of one such dtype and kernels may be started.

    None if not, or if some are not of whole lanes that lie side by side.
    """
    kind = arrays[0].dtype
    for array in arrays:
        whole = array.size and array.shape[-1] % WIDTH == 0 and array.strides[-1] == kind.itemsize
        if not whole or array.dtype != kind:
            return None
    return [seen(array) for array in arrays] if kind in KINDS and usable() else None
