"""Which explanation of a piece is chosen, where several of as many bugs fit. By hand."""

import pytest

from lockstep.parity.explaining.deciding.verdict import decide
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.graph.graph import Piece


def by(name: str, order: int, variant: str = "", call: int = 0) -> Explanation:
    atom = Atom(Hypothesis(None, name, variant, order, frozenset(range(9))), frozenset([call]))  # pyright: ignore[reportArgumentType]
    return Explanation(frozenset([atom]), None)  # pyright: ignore[reportArgumentType]


DROPPED, MISSING = by("dropped", 1), by("missing", 2)


@pytest.mark.parametrize(
    ("against", "like", "name"),
    [(6, False, "missing"), (0, False, "dropped"), (6, True, "dropped")],
)
def test_a_bug_that_is_sure_elsewhere_is_not_sure_where_its_layer_speaks_against_it(
    against, like, name
):
    """One piece cannot be explained without it, two can; but in a like piece it stays sure."""
    norm, *layers = (Piece(number, (number,)) for number in range(3))
    explained = [(norm, [DROPPED]), *((one, [DROPPED, MISSING]) for one in layers)]
    chosen = decide(
        explained, {}, lambda atom: against * (atom.hypothesis.id == "dropped"),
        lambda piece: like or piece is norm,
    )  # fmt: skip
    assert {one.target for one in chosen["dropped", ""].pieces} >= {0}
    assert [piece.target for piece in chosen[name, ""].pieces if piece.target] == [1, 2]


def test_a_fault_that_is_sure_in_any_variant_is_taken_where_another_fits_as_well():
    """A norm cannot be explained without a missing residual, into it alone or into all; the layer
    can, and what would be seen elsewhere speaks against a missing residual.
    """
    norm, layer = (Piece(number, (number,)) for number in range(2))
    whole, alone, normed = by("residual", 1), by("residual", 2, "alone"), by("normed", 3)
    explained = [(norm, [whole, alone]), (layer, [whole, normed])]
    chosen = decide(explained, dict.fromkeys([("residual", ""), ("residual", "alone")], 2))
    assert [piece.target for piece in chosen["residual", ""].pieces] == [0, 1]
    assert chosen.keys() == {("residual", "")}


def test_what_needs_a_bug_more_is_no_tie_of_one():
    """Of a turn that is shifted and done twice, each of the two may be done twice by itself."""
    both, shifted, other = by("twice", 1), by("shifted", 2), by("other", 3)
    parts = by("twice", 4, "queries alone"), by("twice", 5, "keys alone")
    short, same = together(both, shifted), together(both, other)
    chosen = decide([(Piece(0, (0,)), [short, together(both, shifted, *parts), same])], {})
    ties = {key[0]: bug.ties for key, bug in chosen.items()}
    assert ties == {"twice": set(), "shifted": {("other", "")}}


def together(*some: Explanation) -> Explanation:
    return Explanation(frozenset().union(*(one.atoms for one in some)), None)  # pyright: ignore[reportArgumentType]
