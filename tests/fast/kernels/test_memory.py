"""Single numbers that kernels read out of arrays."""

import numpy as np
from numba import njit

from lockstep.fast.kernels.memory import scalar, seen


@njit
def widened(narrow, wide):
    for index in range(len(narrow)):
        wide[index] = scalar(narrow, index)


def test_every_float16_is_widened_as_numpy_does():
    """By witness: all bits that there are; of what is no number, that it is none."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    found, right = np.empty(len(halves), np.float32), halves.astype(np.float32)
    widened(seen(halves), found)
    known = ~np.isnan(right)
    np.testing.assert_array_equal(found[known].view(np.uint32), right[known].view(np.uint32))
    assert np.isnan(found[~known]).all()
