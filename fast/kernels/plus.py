"""Sums of two vectors: what NumPy makes too, but as a kernel among others."""

import numpy as np

from lockstep.fast.kernels.again import empty
from lockstep.fast.kernels.alike import alike
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, added
from lockstep.fast.kernels.memory import floats, seen
from lockstep.fast.kernels.pairs import store_rounded
from lockstep.fast.shapes import Hidden


def summed(x: Hidden, y: Hidden) -> Hidden | None:
    """Return the sum of two arrays of one shape; None if they are not bfloat16 in whole lanes.

    NumPy adds such one by one, and float32 as quickly as memory gives it.
    """
    given = alike(x, y) if x.dtype != np.float32 else None
    if given is None:
        return None
    out, rows = empty(x.shape, x.dtype), x.size // x.shape[-1]
    add_rows(x.size, rows, *(array.reshape(rows, -1) for array in (*given, seen(out))))
    return out


@kernel
def add_rows(row, x, y, out):
    """Write the sum of a row of x (M, E) and one of y to `out`, which is contiguous.

    It is rounded if they are bfloat16.
    """
    width = x.shape[1]
    start, other = row * x.strides[0] // x.itemsize, row * y.strides[0] // y.itemsize
    for index in range(0, width, WIDTH):
        lanes = added(floats(x, start + index), floats(y, other + index))
        store_rounded(out, row * width + index, lanes)
