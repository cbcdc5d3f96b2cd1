"""Single numbers that kernels read out of arrays."""

import numpy as np
import pytest
from numba import njit

from lockstep.fast.kernels.again import empty, empty_on_a_line
from lockstep.fast.kernels.lanes import splat
from lockstep.fast.kernels.memory import scalar, seen, store


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


@njit
def written(halves, at, number):
    store(halves, at, splat(number))


def test_lanes_are_written_where_two_halves_do_not_begin_at_a_whole_number():
    """By law: an odd number of outputs in bfloat16 puts a token's there. The processor would not
    tell, so it is read what LLVM was promised.
    """
    halves = np.zeros(36, np.uint16)
    written(halves, 1, np.float32(1.5))
    assert halves.tobytes() == bytes(2) + 16 * np.float32(1.5).tobytes() + bytes(6)
    (code,) = written.inspect_llvm().values()
    stores = [line for line in code.splitlines() if "store <16 x float>" in line]
    assert stores and all("align 1" in line for line in stores)


@pytest.mark.parametrize(
    "make", [lambda: empty((1, 3), np.int16), lambda: empty_on_a_line(1, 3, np.int16)]
)
def test_kernels_are_tested_with_rooms_that_are_filled(make):
    """By hand: else what they leave might be 0 by chance."""
    assert (make() == -1).all()
