"""A wrong value that two pieces take is one bug. By hand."""

from types import SimpleNamespace

import pytest

from lockstep.parity.explaining.deciding.in_common import in_common
from lockstep.parity.explaining.deciding.verdict import decide
from lockstep.parity.graph.graph import Piece
from tests.parity.explaining.deciding.test_verdict import by

NORM, END = Piece(1, (0, 1)), Piece(2, (0, 2))  # both take what call 0 makes, the sum before
DROPPED, PARALLEL, NORMED = by("dropped", 1), by("parallel", 2, call=1), by("normed", 3, call=2)
EXPLAINED = [(NORM, [PARALLEL, DROPPED]), (END, [NORMED, DROPPED])]


def graph(layer):
    return SimpleNamespace(calls=[SimpleNamespace(layer=layer) for _ in range(3)])


@pytest.mark.parametrize(
    ("against", "layer", "named"),
    [(0, 5, {"dropped"}), (6, 5, {"parallel", "normed"}), (0, None, {"parallel", "normed"})],
)
def test_one_wrong_value_that_two_pieces_take_is_one_bug(against, layer, named):
    """What other layers say against the bug that explains both by that sum counts less; what its
    own says, and what all layers would have in common, more.
    """

    def beside(atom):
        return against * (atom.hypothesis.id == "dropped")

    common = in_common(EXPLAINED, beside, graph(layer))  # pyright: ignore[reportArgumentType]
    chosen = decide(EXPLAINED, {("dropped", ""): 3}, beside, common=common)
    assert {id for id, _ in chosen} == named


def test_pieces_that_take_nothing_from_each_other_have_nothing_in_common():
    apart = [(Piece(1, (1,)), [DROPPED]), (Piece(2, (2,)), [DROPPED])]
    assert not in_common(apart, lambda atom: 0, graph(0))  # pyright: ignore[reportArgumentType]
