"""What explains one piece is tried on another, whose search had no time for it. By hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.exchange import as_well, told_equal
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.graph.graph import Piece

# Two layers, each with a product (calls 0 and 2) and the sum behind it (1 and 3).
GRAPH = SimpleNamespace(calls=[SimpleNamespace(place=place) for place in ("mlp", "", "mlp", "")])


def bug(name: str, *calls: int) -> Atom:
    whole = Hypothesis(SimpleNamespace(), name, "", ord(name), frozenset({0, 1, 2, 3}))  # pyright: ignore[reportArgumentType]
    return Atom(whole, frozenset(calls))


def told(*atoms: Atom, complete: bool = True) -> Explanation:
    judged: Any = None
    return Explanation(frozenset(atoms), judged, complete)


def search(*holds: frozenset[Atom]) -> Any:
    return SimpleNamespace(
        piece=Piece(3, (2, 3)),
        trial=SimpleNamespace(graph=GRAPH),
        settles=lambda atoms: atoms in holds,
        told=lambda sets: [told(*atoms, complete=False) for atoms in sets],
    )


ZEROED, DROPPED, OTHER = bug("z", 0), bug("d", 1), bug("o", 0)
HERE, INSTEAD = frozenset([bug("z", 2), bug("o", 2)]), frozenset([bug("d", 3), bug("o", 2)])


def test_one_bug_for_another_is_equal_where_all_was_tried():
    some = [told(ZEROED, OTHER), told(DROPPED, OTHER)]
    assert set(told_equal(some)) == {(ZEROED, DROPPED), (DROPPED, ZEROED)}
    assert not [*told_equal([told(ZEROED), told(DROPPED, OTHER)])]  # one more is no exchange
    assert not [*told_equal([told(*one.atoms, complete=False) for one in some])]


@pytest.mark.parametrize(
    ("complete", "holds", "found"),
    [(False, True, [INSTEAD]), (False, False, []), (True, True, [])],
)
def test_a_search_that_was_cut_off_is_told_what_does_as_well(complete, holds, found):
    """A sum lies in the sum's module, whichever module the bug that it stands for is in."""
    cut = search(INSTEAD) if holds else search()
    more = as_well(cut, [told(*HERE, complete=complete)], [(ZEROED, DROPPED)])
    assert [one.atoms for one in more] == found
