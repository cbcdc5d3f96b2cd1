"""Sums of two vectors: what NumPy makes too, but as a kernel among others."""

from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, added
from lockstep.fast.kernels.memory import floats, store


@kernel
def add_rows(row, x, y, out):
    """Write the sum of a row of x (M, E) and one of y to `out`; all are contiguous."""
    width = x.shape[1]
    for index in range(row * width, row * width + width, WIDTH):
        store(out, index, added(floats(x, index), floats(y, index)))
