"""Which layers slide is said once: layers that each fit another wrong rule fit none. By law."""

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.parity.explaining.deciding.one_rule import keep_one_rule
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.faults import catalogue
from lockstep.parity.graph.graph import Piece
from tests.parity.explaining.ports import explained, ids, port
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

NAME = "gemma4/dense"  # one layer that slides, and two that see everything
EXCHANGED, EARLY, GELU = "mask-swa-global-swapped", "mask-swa-parity-flipped", "gelu-erf-vs-tanh"
IGNORED = "mask-layer-types-ignored"
KNOWN = (EXCHANGED, EARLY, IGNORED, GELU)


def found_in(taps, *unknown):
    known = [one for one in catalogue() if one.id in KNOWN and one.id not in unknown]
    return explained(NAME, taps, known)


@long
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_exchanged_kinds_are_no_pattern_that_begins_early_and_late(level):
    """Each layer alone is as if its pattern began early, or late, or as if no kinds were known."""
    taps = port(NAME, [f"{EXCHANGED}[exchanged]"], level=level)
    found = found_in(taps)
    assert ids(found) == {EXCHANGED} and found.faults[0].layers == [0, 1, 2]
    for unknown in ([EXCHANGED], [EXCHANGED, EARLY], [EXCHANGED, IGNORED]):
        found = found_in(taps, *unknown)
        assert found.faults == [] and len(found.unexplained) == 3


@long
@pytest.mark.parametrize("variant", ["one layer early", "one layer late"])
def test_a_rule_that_fits_every_layer_is_named_beside_others(variant):
    """Exchanged kinds fit as well where the pattern moved; they would spoil the layer where not."""
    taps = port(NAME, [f"{EARLY}[{variant}]", GELU], level="layers")
    found = found_in(taps)
    named = {one.id: (one.variant, one.also_fits) for one in found.faults}
    assert named.keys() == {EARLY, GELU} and found.unexplained == []
    assert named[EARLY] == (variant, [])


def bug(name: str) -> Atom:
    """Return a bug; those with a capital letter say a rule."""
    fault: Any = SimpleNamespace(rule="kinds" if name.isupper() else "")
    return Atom(Hypothesis(fault, name, "", ord(name), frozenset()), frozenset())


@pytest.mark.parametrize(
    ("found", "fits", "left", "opened"),
    [
        ([["A", "B"], ["A", "Bc"]], [], ["A B", "A Bc"], []),
        ([["A", "B"], ["Bc"]], [], ["B", "Bc"], []),
        ([["A", "B"], ["Bc"]], ["Ac"], ["A B", "Bc Ac"], []),  # that search had not tried it
        ([["A", "B"], ["Bc", "Bd"]], ["Ac", "Ad"], ["A B", "Bc Bd Ac Ad"], []),  # c or d: not told
        ([["A"], ["Bc"]], [], ["", ""], [0, 1]),
        ([["A"], ["Bc", "c"]], [], ["A", "c"], []),  # that one needs no rule
        ([["AB"]], [], [""], [0]),
        ([["b"], ["c"]], [], ["b", "c"], []),
    ],
)
def test_one_bug_of_a_rule_must_explain_all_that_needs_one(found, fits, left, opened):
    """By hand: what explains each piece, in letters, and what explains the second one beside it."""

    def sets(some: list[str]) -> list[Explanation]:
        return [Explanation(frozenset(map(bug, names)), None) for names in some]  # pyright: ignore[reportArgumentType]

    def named(some: list[Explanation]) -> str:
        return " ".join("".join(sorted(a.hypothesis.id for a in one.atoms)) for one in some)

    search = SimpleNamespace(
        atoms=[*map(bug, "ABbcd")],
        cleared=None,
        settles=lambda atoms: {one.hypothesis.id for one in atoms} in [{*names} for names in fits],
        explained_by=lambda some: [Explanation(one, None) for one in some],
    )
    case: Any = SimpleNamespace(
        hypotheses=[one.hypothesis for one in search.atoms], forget=lambda given_up: None,
        search_over=lambda piece: search, trial=SimpleNamespace(graph=None), right=[], open=[],
        explained=[(Piece(number, ()), sets(some)) for number, some in enumerate(found)],
    )  # fmt: skip
    keep_one_rule(case)
    kept = {piece.target: named(some) for piece, some in case.explained}
    assert [kept.get(number, "") for number in range(len(found))] == left
    assert [piece.target for piece in case.open] == opened
