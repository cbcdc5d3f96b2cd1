"""A rule of all layers, and what is wrong with what it alone brings into a piece. By hand."""

from types import SimpleNamespace

import pytest

from lockstep.parity.explaining.searching import brought as module
from lockstep.parity.explaining.searching.brought import beside_what_is_brought
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis

HERE = frozenset([1])


def atom(id, variant="", calls=HERE, *, throughout=False):
    fault = SimpleNamespace(throughout=[variant] if throughout else [])
    return Atom(Hypothesis(fault, id, variant, 0, calls), calls)  # pyright: ignore[reportArgumentType]


RULE = atom("moved", throughout=True)
SCALE, OTHER_SCALE, TURNED = atom("scale", "a"), atom("scale", "b"), atom("turned")
LOUD, ELSEWHERE = atom("loud"), atom("elsewhere", calls=frozenset([2]))
ATOMS = [RULE, SCALE, OTHER_SCALE, TURNED, LOUD, ELSEWHERE]


class Asked:
    """A search that says of some sets that they explain the piece, and counts those it is asked."""

    def __init__(self, *right, most=100):
        self.atoms, self.right, self.most = ATOMS, [*map(frozenset, right)], most
        self.looked = []

    def effect(self, one, first, last):
        return 5.0 if one == LOUD else 0.0

    def look_at(self, some, rows):
        self.looked += some

    def settles(self, atoms):
        return atoms in self.right

    @property
    def spent(self):
        return len(self.looked) > self.most


@pytest.mark.parametrize(
    ("right", "found"),
    [
        ([{RULE, SCALE}, {RULE, SCALE, TURNED}], [{RULE, SCALE}]),
        ([{RULE, OTHER_SCALE, TURNED}], [{RULE, OTHER_SCALE, TURNED}]),
        ([{RULE, SCALE, OTHER_SCALE}], []),
        ([{RULE}, {SCALE}, {SCALE, TURNED}], []),
        ([{RULE, LOUD}, {RULE, ELSEWHERE}], []),
    ],
)
def test_a_rule_is_tried_with_what_does_nothing_in_its_calls_without_it(right, found):
    """The smallest sets: one bug or two of what is brought, never one bug in two variants."""
    search = Asked(*right)
    assert beside_what_is_brought(search) == found  # pyright: ignore[reportArgumentType]
    beside = (SCALE, OTHER_SCALE, TURNED)
    alone = [{RULE, one} for one in beside]
    pairs = [{RULE, one, TURNED} for one in (SCALE, OTHER_SCALE)]
    small = bool(found) and len(found[0]) == 2
    assert search.looked == (alone if small else alone + pairs)


def test_no_more_are_tried_than_the_budget_allows(monkeypatch):
    monkeypatch.setattr(module, "TOGETHER", 1)
    for most in (0, 1, 3):
        search = Asked({RULE, OTHER_SCALE, TURNED}, most=most)
        assert beside_what_is_brought(search) == []  # pyright: ignore[reportArgumentType]
        assert len(search.looked) == most + 1
