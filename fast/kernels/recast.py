"""Vectors from float32 to bfloat16, and back, as a kernel among others."""

from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.memory import floats
from lockstep.fast.kernels.pairs import store_rounded


@kernel
def recast(place, x, out):
    """Write all of x, in whole lanes, to `out`: widened, or rounded to the nearest."""
    for index in range(0, x.size, WIDTH):
        store_rounded(out, index, floats(x, index))
