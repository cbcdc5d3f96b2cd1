"""The masks of `fast`, against the reference's rule, and when they are a word instead."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.fast.masks import seen_keys
from lockstep.reference.ops import causal_mask
from tests.draws import seeds

WINDOWS = st.one_of(st.none(), st.integers(1, 12))
lengths = st.integers(0, 6)


@settings(max_examples=200)
@given(seed=seeds, batch=st.integers(1, 3), new=lengths, held=lengths, window=WINDOWS)
def test_any_positions(seed, batch, new, held, window):
    """By witness: the reference's mask, with repeated and unsorted positions and padding."""
    rng = np.random.default_rng(seed)
    query, key = rng.integers(-1, 8, (batch, new)), rng.integers(-1, 8, (batch, held))
    check(query, key, window)


@settings(max_examples=100)
@given(seed=seeds, batch=st.integers(1, 3), new=lengths, held=lengths, window=WINDOWS)
def test_keys_that_stand_elsewhere_for_each_query(seed, batch, new, held, window):
    """By witness: the reference's mask, of a rotating cache that hides keys from some queries."""
    rng = np.random.default_rng(seed)
    check(rng.integers(-1, 8, (batch, new)), rng.integers(-1, 8, (batch, new, held)), window)


@settings(max_examples=100)
@given(batch=st.integers(1, 3), new=lengths, past=lengths, window=WINDOWS, padded=st.integers(0, 3))
def test_steps_in_order(batch, new, past, window, padded):
    """By witness: prefill and decode, with a row that is padded on the right."""
    key = np.tile(np.arange(past + new), (batch, 1))
    query = key[:, past:].copy()
    key[-1, len(key[-1]) - padded :] = -1
    check(query, key, window)


def check(query, key, window) -> None:
    """Compare the mask, and what is said about it, with the reference."""
    seen = seen_keys(query, key, window)
    truth = causal_mask(query, key, window=window)
    np.testing.assert_array_equal(seen.mask, truth)
    assert seen.blind == (not truth.any(axis=-1).all())
    if seen.kind == "all":
        assert truth.all()
    if seen.kind == "causal":
        new, held = truth.shape[2:]
        np.testing.assert_array_equal(truth[:, 0], [np.tri(new, held, held - new)] * len(truth))


@settings(max_examples=50)
@given(seed=seeds, new=lengths, held=lengths, window=st.integers(6, 10) | st.just(2**63))
def test_windows_about_as_wide_as_the_text_and_wider_than_any_whole_number(seed, new, held, window):
    """By witness: as above, with lone and padded queries."""
    rng = np.random.default_rng(seed)
    check(rng.integers(-1, 8, (2, new)), rng.integers(-1, 8, (2, held)), window)


KINDS = [  # query positions, key positions, window, kind
    ([0, 1, 2], [0, 1, 2], None, "causal"),
    ([2, 3], [0, 1, 2, 3], None, "causal"),
    ([3], [0, 1, 2, 3], None, "all"),
    ([3], [0, 1, 2, 3], 4, "all"),
    ([3], [0, 1, 2, 3], 3, "some"),
    ([0, 1, 2], [0, 1, 2], 3, "causal"),
    ([0, 1, 2], [0, 1, 2], 2, "some"),
    ([3], [0, 1, -1, 3], None, "some"),
    ([3], [0, 1, 2, 2], None, "all"),
    ([6], [4, 5, 6, 3], 4, "all"),  # a ring
    ([1], [0, 1, 2], None, "some"),
    ([0, 2, 1], [0, 1, 2], None, "some"),
    ([0, 1, 2], [2], None, "some"),
    ([5], [1, 2, 3, 4, 5], None, "all"),
]


@pytest.mark.parametrize("query, key, window, kind", KINDS)
def test_a_plain_step_is_a_word(query, key, window, kind):
    """By hand: the fused kernels get no mask for these, and only for these."""
    assert seen_keys(np.array([query]), np.array([key]), window).kind == kind


def test_one_row_out_of_order_needs_the_mask():
    """By hand: a word speaks for the whole batch."""
    key = np.array([[0, 1, 2], [0, 1, 2]])
    assert seen_keys(key, key, None).kind == "causal"
    assert seen_keys(key, np.array([[0, 1, 2], [0, 1, -1]]), None).kind == "some"
    assert seen_keys(np.array([[0, 1, 2], [1, 2, 3]]), key, None).kind == "some"


def test_the_triangle_is_stored_once():
    """By law: the mask of a plain step takes no memory for the batch."""
    key = np.tile(np.arange(8), (16, 1))
    assert seen_keys(key, key, None).mask.strides[0] == 0


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_sees_one_key_at_least(window):
    """By law: the window counts the query itself."""
    with pytest.raises(ValueError, match=f"window={window}, but should be at least 1, or None"):
        seen_keys(np.array([[0]]), np.array([[0]]), window)
