"""What fits in the place of one variant of a bug, and not of the others: by hand."""

from types import SimpleNamespace

import pytest

from lockstep.parity.explaining.deciding.one_bug import with_shared_ties
from lockstep.parity.explaining.deciding.verdict import Chosen, decide
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.graph.graph import Piece

CALLS = [SimpleNamespace(place=place, op="scores") for place in ("attn", "attn", "head")]
GRAPH = SimpleNamespace(calls=CALLS)
LENGTH, OTHER = ("length", ""), ("other", "")


def bug(name, variant, call, *rivals, complete=True):
    atom = SimpleNamespace(calls=frozenset([call]))
    hypothesis = SimpleNamespace(id=name, variant=variant)
    return (name, variant), Chosen(hypothesis, [None], [atom], [set(rivals)], [complete])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("second", "left"),
    [
        (bug("scale", "full", 1), set()),
        (bug("scale", "full", 1, LENGTH), {LENGTH}),
        (bug("scale", "full", 1, ("length", "another variant")), {LENGTH}),
        (bug("scale", "full", 2), {LENGTH, OTHER}),  # somewhere else: that may be another bug
        (bug("mask", "", 1), {LENGTH, OTHER}),
        (bug("scale", "full", 1, LENGTH, complete=False), {LENGTH, OTHER}),  # not looked for
    ],
)
def test_a_tie_must_fit_wherever_the_bug_is(second, left):
    first = bug("scale", "sliding", 0, LENGTH, OTHER, ("scale", "full"))
    with_shared_ties(dict([first, second]), GRAPH)  # pyright: ignore[reportArgumentType]
    assert first[1].ties == left | {("scale", "full")}


def test_one_piece_in_which_all_was_looked_for_is_enough():
    first = bug("scale", "sliding", 0, LENGTH, OTHER)
    key, second = bug("scale", "full", 1, LENGTH)
    second.rivals.append(set())
    second.complete.append(False)
    with_shared_ties(dict([first, (key, second)]), GRAPH)  # pyright: ignore[reportArgumentType]
    assert first[1].ties == {LENGTH}


def test_whether_all_was_looked_for_is_handed_on():
    atom = Atom(Hypothesis(None, "scale", "", 0, frozenset([0])), frozenset([0]))  # pyright: ignore[reportArgumentType]
    pieces = [Piece(number, (number,)) for number in range(2)]
    explained = [
        (piece, [Explanation(frozenset([atom]), None, piece.target == 1)])  # pyright: ignore[reportArgumentType]
        for piece in pieces
    ]
    assert decide(explained, {})["scale", ""].complete == [False, True]
