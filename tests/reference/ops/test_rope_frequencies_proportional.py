import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tolerances import assert_close


@settings(max_examples=30)
@given(theta=st.floats(1, 1e9), pairs=st.integers(1, 64), part=st.sampled_from([0, 0.25, 0.5, 1]))
def test_follows_its_formula(backend, theta, pairs, part):
    """By loop: theta ** (-2j / dims) for the first pairs, then zeros."""
    found = backend.rope_frequencies_proportional(
        theta=theta, dims=2 * pairs, partial_rotary_factor=part
    )
    turned = math.floor(part * pairs)
    exact = [math.pow(theta, -j / pairs) if j < turned else 0.0 for j in range(pairs)]
    assert_close(found, exact, kind="rotation", each=True)


def test_the_full_layers_of_gemma(backend):
    """By hand: heads of 512, theta 1,000,000, a quarter; from `modeling_rope_utils.py`."""
    found = backend.rope_frequencies_proportional(theta=1e6, dims=512, partial_rotary_factor=0.25)
    known = {0: 1.0, 1: 0.947464, 2: 0.897687, 62: 0.0352270, 63: 0.0333763}
    np.testing.assert_allclose(found[list(known)], list(known.values()), rtol=2e-6)
    assert (found[64:] == 0).all() and found.shape == (256,)


def test_all_of_a_head_is_the_plain_kind(backend):
    """By law: a factor of 1 changes nothing."""
    found = backend.rope_frequencies_proportional(theta=100.0, dims=8, partial_rotary_factor=1.0)
    np.testing.assert_array_equal(found, backend.rope_frequencies(theta=100.0, dims=8))


def test_what_does_not_turn_stays_as_it_is(backend):
    """By hand: dims 0 and 4 of 8 turn with a quarter of the pairs; the others keep their bits."""
    turns = backend.rope_frequencies_proportional(theta=100.0, dims=8, partial_rotary_factor=0.25)
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 1, 8)
    found = backend.rope(x, np.array([[3]]), turns, factor=1.0)
    assert np.flatnonzero((found != x).ravel()).tolist() == [0, 4]


@pytest.mark.parametrize("part", [-0.1, 1.1, math.nan])
def test_more_than_a_head_is_refused(backend, part):
    """By law."""
    with pytest.raises(ValueError, match=f"partial_rotary_factor={part}, but should be 0 to 1"):
        backend.rope_frequencies_proportional(theta=100.0, dims=8, partial_rotary_factor=part)


def test_dims_must_pair_up(backend):
    """By law: as for the plain frequencies."""
    with pytest.raises(ValueError, match="dims=7"):
        backend.rope_frequencies_proportional(theta=100.0, dims=7, partial_rotary_factor=0.5)
