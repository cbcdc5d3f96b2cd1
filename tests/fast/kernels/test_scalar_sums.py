"""Sums of lanes times scalars, whichever of them stay in the registers together."""

import numpy as np
import pytest
from numba import njit

from lockstep.fast.kernels.lanes import WIDTH
from lockstep.fast.kernels.scalar_sums import summing
from tests.draws import normal
from tests.tolerances import assert_close, assert_same_bits

COUNT, SUMS, TO = 5, 8, 3 * WIDTH
LANES = normal(0, COUNT + 1, WIDTH)


def made(many, fresh, scalars, along, apart):
    """Return the sums (SUMS, 16), so many of them at a time, from the second scalar on."""
    put_sums = summing(many, fresh=fresh)

    @njit
    def put(lanes, scalars, along, apart, out):
        for one in range(0, SUMS, many):
            at, to = 1 + one * apart, TO + one * WIDTH
            put_sums(lanes, COUNT, scalars, at, along, apart, out, to)

    out = np.ones(TO + SUMS * WIDTH, np.float32)
    put(LANES, scalars, along, apart, out)
    assert (out[:TO] == 1).all()
    return out[TO:].reshape(SUMS, WIDTH)


@pytest.mark.parametrize("fresh", [True, False])
def test_scalars_of_rows_and_of_columns(fresh):
    """By definition, in float64: sums of rows of a matrix, and of its columns."""
    matrix = normal(1, 9, 9)
    for scalars, along, apart in ((matrix[:SUMS, 1:], 1, 9), (matrix[:, 1:].T, 9, 1)):
        exact = scalars[:SUMS, :COUNT].astype(np.float64) @ LANES[:COUNT] + (not fresh)
        found = made(SUMS, fresh, matrix.ravel(), along, apart)
        assert_close(found, exact, kind="sum")
        for many in (1, 4):
            assert_same_bits(made(many, fresh, matrix.ravel(), along, apart), found)
