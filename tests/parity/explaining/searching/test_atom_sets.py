"""Which sets of bugs a search goes on from. By hand: a set of digits stands for one of bugs."""

import pytest

from lockstep.parity.explaining.searching.atom_sets import distinct

ERRORS = {
    frozenset("a"): 0.85, frozenset("bc"): 0.80, frozenset("de"): 0.70, frozenset("d"): 0.8004
}  # fmt: skip


@pytest.mark.parametrize(
    ("by_chance", "first"), [(1.0, ["de", "d", "bc", "a"]), (0.9, ["de", "d", "a", "bc"])]
)
def test_a_bug_more_is_worth_what_it_explains_beyond_chance(by_chance, first):
    """0.85 / 0.9 is less than 0.80 / 0.81, and that more than 0.70 / 0.81."""
    found = distinct(ERRORS, 4, by_chance)  # pyright: ignore[reportArgumentType]
    assert found == [frozenset(one) for one in first]
