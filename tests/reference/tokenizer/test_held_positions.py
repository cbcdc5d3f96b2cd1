"""Where the tokens of a cache stand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.checkpoint.errors import InputError
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


def test_what_there_is_no_room_for_is_not_noted():
    """By hand: room for 4 takes 4, padding included, and not a fifth."""
    held = HeldPositions(room=4)
    held.extend(np.array([[0, 1, 2], [0, PADDING, PADDING]]))
    for more in (np.array([[3, 4], [1, 2]]), np.array([[3, 4], [1, PADDING]])):
        with pytest.raises(InputError, match="cache: 5 tokens, but room was made for 4"):
            held.extend(more)
        assert held.array.tolist() == [[0, 1, 2], [0, -1, -1]]
    held.branch().extend(np.array([[3], [1]]))
    assert held.extend(np.array([[3], [1]])).shape == (2, 4)


def test_a_sliding_layer_needs_the_last_tokens_of_its_window():
    """By hand: with a window of 3 a token sees itself and two before it."""
    held = HeldPositions(3)
    held.extend(np.arange(5)[None])
    assert held.first == 0  # the first step is seen whole
    held.extend(np.array([[5]]))
    assert held.first == 3
    held.extend(np.array([[6, 7]]))
    assert held.first == 4
    held.trim(2)
    held.extend(np.array([[6]]))
    assert held.first == 4


def test_the_row_that_is_farthest_behind_decides():
    """By hand: the short row's tokens lie before its padding."""
    held = HeldPositions(2)
    held.extend(np.array([[0, 1, 2, 3], [0, 1, PADDING, PADDING]]))
    held.extend(np.array([[4], [2]]))
    assert held.first == 1


def test_what_was_dropped_cannot_be_needed_again():
    held = HeldPositions(2)
    for step in ([0, 1, 2, 3], [4]):
        held.extend(np.array([step]))
    held.trim(3)  # 0 and 1 are left, of which 0 to 2 were dropped
    with pytest.raises(
        InputError, match="token 1 is needed again, but sliding layers have dropped"
    ):
        held.extend(np.array([[2]]))
    assert held.array.tolist() == [[0, 1]]
    held.trim(2)
    held.extend(np.array([[0, 1]]))  # from the beginning
    assert held.first == 0


@settings(max_examples=60)
@given(
    steps=st.lists(st.lists(st.integers(1, 4), min_size=2, max_size=2), min_size=1, max_size=6),
    window=st.integers(1, 6),
)
def test_no_query_sees_a_token_before_the_first(steps, window):
    """By loop: two rows of unequal steps, padded; each query against each token."""
    held = HeldPositions(window)
    for lengths in steps:
        start, width = held.next(2), max(lengths)
        new = start[:, None] + np.arange(width)
        new = np.where(np.arange(width) < np.array(lengths)[:, None], new, PADDING)
        every = held.extend(new)
        for row in range(2):
            sees = [
                place
                for place, key in enumerate(every[row])
                for query in new[row]
                if 0 <= key <= query and query - key < window
            ]
            assert min(sees) >= held.first
