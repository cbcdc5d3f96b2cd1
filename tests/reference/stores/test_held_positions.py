"""Where the tokens of a cache stand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores.held_positions import HeldPositions
from lockstep.reference.stores.ring import FORGOTTEN, PADDING, Ring


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


def test_a_branch_has_rings_of_its_own():
    """By hand: with a window of 2, the next token sees the last one and itself."""
    held = HeldPositions({"sliding_attention": Ring(2)})
    held.extend(np.arange(5)[None])
    branch = held.branch()
    branch.extend(np.array([[5]]))
    assert held.length == 5 and held.rings["sliding_attention"].slots.tolist() == [0, 1, 2, 3, 4]
    assert branch.rings["sliding_attention"].slots.tolist() == [5, 4]


def test_what_was_dropped_cannot_be_needed_again():
    """By hand: a trim is refused at once, and so is a token at a place that sees what is gone."""
    held = HeldPositions({"sliding_attention": Ring(2)})
    for step in ([0, 1, 2, 3], [4]):
        held.extend(np.array([step]))
    said = "token 1 is needed again, but layers with a window have dropped it"
    with pytest.raises(InputError, match=said):
        held.trim(3)  # 0 and 1 would be left, of which 0 to 2 were dropped
    with pytest.raises(InputError, match=said):
        held.extend(np.array([[2]]))
    assert held.array.tolist() == [[0, 1, 2, 3, 4]]
    held.trim(5)
    held.extend(np.array([[0, 1]]))  # from the beginning
    assert held.rings["sliding_attention"].slots.tolist() == [0, 1]


def forgetful(size: int, keep: int = 0) -> HeldPositions:
    """Return positions of a cache of which every layer rotates."""
    return HeldPositions({"full_attention": Ring(size, keep, "ring")}, forgets=True)


def test_what_every_layer_dropped_takes_no_memory():
    """By hand: a ring of 4 of which 1 is kept holds 5 positions, whatever came before."""
    held = forgetful(4, 1)
    for token in range(1000):
        held.extend(np.array([[token]]))
        assert held.array.nbytes + held.numbers.nbytes <= 2 * 5 * 8
    assert held.length == 1000 and held.next(1).tolist() == [1000]
    assert held.array.tolist() == [[0, 996, 997, 998, 999]] == [held.numbers.tolist()]
    assert held.whole()[0, [0, 1, 995, 996]].tolist() == [0, FORGOTTEN, FORGOTTEN, 996]


def test_a_layer_that_keeps_all_keeps_all_positions():
    """By hand: without `forgets`, which a cache says if all of its layers have rings."""
    held = HeldPositions({"sliding_attention": Ring(2)})
    for token in range(50):
        held.extend(np.array([[token]]))
    assert held.array.shape == (1, 50)


steps_of_rows = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=8
)


@settings(max_examples=200, deadline=None)
@given(steps=steps_of_rows, size=st.integers(2, 5), keep=st.integers(0, 3))
def test_forgetting_changes_nothing_that_is_seen(steps, size, keep):
    """By loop: beside it goes one that forgets nothing, through unequal rows and trims."""
    kinds = {"full_attention": Ring(size, keep, "ring")}
    whole, short = HeldPositions(kinds), HeldPositions(kinds, forgets=True)
    for first, second, back in steps:
        lengths, count = np.array([[first], [second]]), max(first, second)
        places = whole.next(2)[:, None] + np.arange(count)
        marked = np.where(np.arange(count) < lengths, places, PADDING)
        for held in (whole, short):
            held.extend(marked)
        compare(whole, short)
        back = min(back, whole.length)
        refused = [refuses(held, back) for held in (whole, short)]
        assert refused[1] or not refused[0]  # what is seen again is refused by both
        if refused[0] != refused[1]:  # only in what only one row could go back to
            return
        compare(whole, short)
        if not whole.length:
            return


def refuses(held: HeldPositions, count: int) -> bool:
    try:
        held.trim(count)
    except InputError:
        return True
    return False


def compare(whole: HeldPositions, short: HeldPositions) -> None:
    ring, other = (held.rings["full_attention"] for held in (whole, short))
    assert whole.length == short.length and ring.slots.tolist() == other.slots.tolist()
    assert whole.next(2).tolist() == short.next(2).tolist()
    assert (whole.array[:, short.numbers] == short.array).all()
    live = ring.slots[ring.slots < whole.length]
    assert np.isin(live, short.numbers).all()


@pytest.mark.parametrize("count", range(1, 13))
def test_a_single_text_is_trimmed_as_if_nothing_was_forgotten(count):
    """By loop: 12 tokens through a ring of 4 of which 2 stay, back to every length."""
    kinds = {"full_attention": Ring(2, 2, "ring")}
    whole, short = HeldPositions(kinds), HeldPositions(kinds, forgets=True)
    for step in ([0, 1, 2, 3, 4], [5], [6], [7, 8, 9], [10], [11]):
        for held in (whole, short):
            held.extend(np.array([step]))
    assert short.array.shape[1] < 6
    assert refuses(whole, count) == refuses(short, count) == (count not in (1, 10, 11, 12))


def test_a_file_says_what_was_forgotten():
    """By hand: what is taken goes on, and refuses to go back, as what was given."""
    held, other = forgetful(3), forgetful(3)
    for token in range(9):
        held.extend(np.array([[token]]))
    other.take(held.whole())
    assert other.gone.tolist() == held.gone.tolist() == [5]
    assert (other.length, other.end_of_gone) == (held.length, held.end_of_gone) == (9, 6)
    with pytest.raises(InputError, match="token 5 is needed again"):
        other.trim(2)
