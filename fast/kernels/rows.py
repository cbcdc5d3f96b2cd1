"""Which arrays the kernels of norms, gates and rope can read as they lie."""

import numpy as np

from lockstep.fast.kernels.kernel import usable
from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.shapes import Array

BYTES = 4  # of a float32


def fitting(*arrays: Array) -> bool:
    """Whether all are float32, of whole lanes that lie side by side, and kernels may be started."""
    for array in arrays:
        whole = array.size and array.shape[-1] % WIDTH == 0 and array.strides[-1] == BYTES
        if not whole or array.dtype != np.float32:
            return False
    return usable()
