"""Sums of bfloat16 in machine code."""

import numpy as np
import pytest

from lockstep.fast import kernels
from lockstep.fast.cpu import add
from tests.draws import normal
from tests.ops_backends import DTYPES

BFLOAT16 = DTYPES["bfloat16"]


@pytest.mark.parametrize("width", [32, 48, 20])
def test_sums_are_those_of_numpy(width, monkeypatch):
    """By law: both are the float32 sum, rounded once; parts of a wider array too."""
    x = normal(0, 3, 5, 2 * width).astype(BFLOAT16)[..., width:]
    y = normal(1, 3, 5, width).astype(BFLOAT16)
    x[0, 0, :3], y[0, 0, :3] = (np.inf, 3e38, 2**-8), (1, 3e38, 1)
    found = add(x, y)
    monkeypatch.setattr(kernels, "available", lambda: False)
    np.testing.assert_array_equal(found, add(x, y))
    assert found.dtype == BFLOAT16
    assert np.isinf(found[0, 0, :2]).all()
    assert found[0, 0, 2] == 1  # halves go to the even one
