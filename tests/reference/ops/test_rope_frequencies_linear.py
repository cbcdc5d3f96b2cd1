import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tolerances import assert_close


@settings(max_examples=30)
@given(theta=st.floats(1, 1e9), pairs=st.integers(1, 64), factor=st.floats(1, 64))
def test_follows_its_formula(backend, theta, pairs, factor):
    """By loop: theta ** (-2j / dims) / factor, in Python's floats."""
    found = backend.rope_frequencies_linear(theta=theta, dims=2 * pairs, factor=factor)
    exact = [math.pow(theta, -j / pairs) / factor for j in range(pairs)]
    assert_close(found, exact, kind="rotation", each=True)


def test_position_8_turns_as_position_2_did(backend):
    """By hand: squeezed four times."""
    plain = backend.rope_frequencies(theta=100.0, dims=8)
    found = backend.rope_frequencies_linear(theta=100.0, dims=8, factor=4.0)
    assert_close(8 * found, 2 * plain, kind="rotation")


@pytest.mark.parametrize("factor", [0.5, 0, -1, math.nan])
def test_nothing_is_spread(backend, factor):
    """By law: a factor below 1 would be another model."""
    with pytest.raises(ValueError, match=f"factor={factor}, but should be at least 1"):
        backend.rope_frequencies_linear(theta=100.0, dims=8, factor=factor)


def test_dims_must_pair_up(backend):
    """By law: as for the plain frequencies."""
    with pytest.raises(ValueError, match="dims=7"):
        backend.rope_frequencies_linear(theta=100.0, dims=7, factor=2.0)
    assert np.isfinite(backend.rope_frequencies_linear(theta=100.0, dims=6, factor=2.0)).all()
