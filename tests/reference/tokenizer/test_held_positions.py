"""Where the tokens of a cache stand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.tokenizer.held_positions import PADDING, HeldPositions


def test_nothing_is_held_at_first():
    """By hand: every row begins at 0."""
    held = HeldPositions()
    assert held.length == 0
    assert held.next(3).tolist() == [0, 0, 0]


def test_rows_go_on_after_their_own_last_token():
    """By hand: padding takes room, and no position."""
    held = HeldPositions()
    held.extend(np.array([[0, 1, 2], [0, PADDING, PADDING]]))
    assert held.length == 3
    assert held.next(2).tolist() == [3, 1]
    every = held.extend(np.array([[3], [1]]))
    assert every.tolist() == [[0, 1, 2, 3], [0, -1, -1, 1]]
    assert held.next(2).tolist() == [4, 2]


def test_positions_of_ones_own_count_from_the_highest():
    """By hand: unsorted positions, and a row of padding alone."""
    held = HeldPositions()
    held.extend(np.array([[7, 2], [PADDING, PADDING]]))
    assert held.next(2).tolist() == [8, 0]


@settings(max_examples=40)
@given(steps=st.lists(st.integers(0, 5), max_size=6), batch=st.integers(1, 3))
def test_steps_count_on(steps, batch):
    """By law: however the tokens are cut into steps, they stand at 0, 1, 2 ..."""
    held = HeldPositions()
    for new in steps:
        held.extend(held.next(batch)[:, None] + np.arange(new))
    assert held.length == sum(steps)
    assert held.next(batch).tolist() == [sum(steps)] * batch
    if steps:
        np.testing.assert_array_equal(held.array, [np.arange(sum(steps))] * batch)


def test_extending_leaves_earlier_answers_alone():
    """By law: what a step was told does not change under it."""
    held = HeldPositions()
    first = held.extend(np.array([[0, 1]]))
    held.extend(np.array([[2]]))
    assert first.tolist() == [[0, 1]]


def test_another_number_of_rows_is_refused():
    """By law: one cache serves one batch."""
    held = HeldPositions()
    held.extend(np.zeros((2, 1), np.int64))
    with pytest.raises(ValueError, match="3 rows, but the cache holds 2"):
        held.next(3)
