"""What explains one piece is tried on another, whose search had no time for it. By hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.exchange import as_well, exchange, in_turn, told_equal
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
        explained_by=lambda sets: [told(*atoms, complete=False) for atoms in sets],
    )


ZEROED, DROPPED, OTHER = bug("z", 0), bug("d", 1), bug("o", 0)
HERE, INSTEAD = frozenset([bug("z", 2), bug("o", 2)]), frozenset([bug("d", 3), bug("o", 2)])


@pytest.mark.parametrize("complete", [True, False])
def test_one_bug_for_another_is_equal_where_either_explains(complete):
    some = [told(ZEROED, OTHER, complete=complete), told(DROPPED, OTHER, complete=complete)]
    assert set(told_equal(some)) == {(ZEROED, DROPPED), (DROPPED, ZEROED)}
    assert not [*told_equal([told(ZEROED), told(DROPPED, OTHER)])]  # one more is no exchange


@pytest.mark.parametrize(
    ("complete", "holds", "found"),
    [(False, True, [INSTEAD]), (False, False, []), (True, True, [])],
)
def test_a_search_that_was_cut_off_is_told_what_does_as_well(complete, holds, found):
    """A sum lies in the sum's module, whichever module the bug that it stands for is in."""
    cut = search(INSTEAD) if holds else search()
    more = as_well(cut, [told(*HERE, complete=complete)], [(ZEROED, DROPPED)])
    assert [one.atoms for one in more] == found


def exchanged(cleared: object, *sets: str) -> Any:
    """Return a case of like pieces after each was tried with what explains the others."""
    pairs = [[Atom(Hypothesis(None, id, "", 0, frozenset()), frozenset()) for id in ids]  # pyright: ignore[reportArgumentType]
             for ids in sets or ("ab", "cd")]  # fmt: skip
    every = [one for pair in pairs for one in pair]
    pieces = [Piece(number, ()) for number in range(len(pairs))]
    search = SimpleNamespace(
        atoms=every, piece=None, cleared=cleared, settles=lambda atoms: cleared is None,
        explained_by=lambda some: [Explanation(one, None) for one in some],
    )  # fmt: skip
    case = SimpleNamespace(
        graph=SimpleNamespace(kind=lambda piece: ()), atoms={}, wrong=pieces, right=[], judged={},
        beside=SimpleNamespace(counted={1: 2}), search_over=lambda piece: search,
        explained=[(piece, [Explanation(frozenset(pair), None)])
                   for piece, pair in zip(pieces, pairs, strict=True)],
    )  # fmt: skip
    case.clear = lambda *given: Case.clear(case, *given)
    exchange(case)  # pyright: ignore[reportArgumentType]
    return case


def test_like_pieces_try_each_others_explanations():
    case = exchanged(None)
    assert [len(some) for _, some in case.explained] == [2, 2] and not case.right


def test_a_bug_of_one_piece_alone_is_tried_against_those_of_others():
    """By hand: both others have `a`, and each another one beside it."""
    case = exchanged(None, "ax", "abc", "abd")
    tried = [{"".join(sorted(atom.hypothesis.id for atom in one.atoms)) for one in some}
             for _, some in case.explained]  # fmt: skip
    assert tried[0] == {"ax", "ab", "ac", "ad", "abc", "abd"}


def test_a_piece_that_another_ones_bugs_clear_is_right():
    """By hand: nothing is kept that was told of it, or counted by it."""
    right = SimpleNamespace(passed=True)
    case = exchanged(right)
    assert (case.explained, case.wrong, case.beside.counted) == ([], [], {})
    assert [one.target for one in case.right] == [0, 1] and case.judged == {0: right, 1: right}


def test_sets_are_asked_in_turn_and_once():
    """By hand: letters for sets."""
    assert [*in_turn(["abc", "ad", "e"])] == ["a", "e", "b", "d", "c"]  # pyright: ignore
