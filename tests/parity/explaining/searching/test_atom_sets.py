"""Which sets of bugs a search goes on from, and where it starts. By hand."""

import pytest

from lockstep.parity.explaining.searching.atom_sets import distinct, widest
from tests.parity.explaining.searching.made_up import atom, sets


def test_of_sets_that_leave_nearly_the_same_two_are_kept():
    """By hand: a third of the same error would only push out what differs."""
    a, b, c, d = sets("a", "b", "c", "d")
    kept = distinct({a: 1.0, b: 1.0001, c: 1.0002, d: 2.0}, 3)
    assert kept == [a, b, d]


def test_of_sets_that_leave_nearly_the_same_the_smaller_ones_are_kept():
    """By hand: what one more bug leaves as it was, it does not explain."""
    a, b, c = sets("a", "b", "c")
    assert distinct({a | b | c: 0.99999, a | b: 1.0, a | c: 1.00001, a: 1.00002}, 3) == [a, a | b]


def test_the_best_come_first_and_no_more_than_asked_for():
    a, b, c = sets("a", "b", "c")
    assert distinct({a: 3.0, b: 1.0, c: 2.0}, 2) == [b, c]


def test_a_search_starts_from_every_choice_of_variants_each_where_it_acts_most():
    """By hand: one bug in two variants, another in two places."""
    wide, narrow = atom("x", "one", 1, 2), atom("x", "one", 1)
    other, second = atom("x", "two", 1), atom("y", "", 3)
    found = widest([narrow, wide, other, second])
    assert set(found) == {frozenset([wide, second]), frozenset([other, second])}


def test_nothing_known_gives_no_start():
    assert widest([]) == []


@pytest.mark.parametrize(("by_chance", "larger_first"), [(1.0, True), (0.9, False)])
def test_a_bug_more_is_worth_what_it_explains_beyond_chance(by_chance, larger_first):
    """0.85 / 0.9 is less than 0.80 / 0.81, and that more than 0.70 / 0.81."""
    a, b, c = sets("a", "b", "c")
    found = distinct({a: 0.85, a | b: 0.80, b | c: 0.70}, 3, by_chance)
    assert found == [b | c, *([a | b, a] if larger_first else [a, a | b])]
