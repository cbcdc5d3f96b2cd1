import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tolerances import assert_close

thetas = st.floats(1e-3, 1e12)


@settings(max_examples=40)
@given(theta=thetas, pairs=st.integers(1, 64))
def test_powers_of_theta(backend, theta, pairs):
    """By loop: theta ** (-2j / dims), in Python's floats."""
    found = backend.rope_frequencies(theta=theta, dims=2 * pairs)
    for j, value in enumerate(found):
        assert_close(value, math.pow(theta, -j / pairs), kind="rotation")
    assert found.shape == (pairs,) and found.dtype == np.float64


def test_four_dimensions(backend):
    """By hand: 10000 ** 0 and 10000 ** -0.5."""
    expected = np.array([1, 0.01])
    assert_close(backend.rope_frequencies(theta=10000, dims=4), expected, kind="rotation")


@settings(max_examples=20)
@given(theta=thetas, pairs=st.integers(1, 64))
def test_the_first_pair_turns_by_one_radian(backend, theta, pairs):
    """By law: anything to the power of 0 is 1, exactly."""
    assert backend.rope_frequencies(theta=theta, dims=2 * pairs)[0] == 1


def test_a_huge_theta_is_no_overflow(backend):
    """By hand: 1e300 ** -0.5."""
    found = backend.rope_frequencies(theta=1e300, dims=4)
    np.testing.assert_array_equal(found > 0, True)
    assert_close(found[1] * 1e150, 1, kind="rotation")


@pytest.mark.parametrize("dims", [-2, 0, 1, 7])
def test_dims_must_pair_up(backend, dims):
    """By law: an odd dimension has no partner."""
    with pytest.raises(ValueError, match=f"dims={dims}, theta=10000"):
        backend.rope_frequencies(theta=10000, dims=dims)


@pytest.mark.parametrize("theta", [0, -1, math.inf, math.nan])
def test_theta_must_be_positive_and_finite(backend, theta):
    """By law: no power of it would be a rotation."""
    with pytest.raises(ValueError, match=f"dims=4, theta={theta}"):
        backend.rope_frequencies(theta=theta, dims=4)
