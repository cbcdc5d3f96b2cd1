"""Which of two explanations a port follows, on values made by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.explaining.deciding import duel
from lockstep.parity.explaining.deciding.duel import Way, way, ways
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.graph.graph import Piece

NOISE = 0.01
RANDOM = np.random.default_rng(2)
ONE = RANDOM.standard_normal((20, 50))
OTHER = ONE * (1 + NOISE * RANDOM.standard_normal(ONE.shape))
ROUNDED = NOISE * RANDOM.standard_normal(ONE.shape)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_port_is_found_on_the_way(share):
    """By law: noise of the size of the way itself hides it in each number, and not in all."""
    found = way(ONE + share * (OTHER - ONE) + ROUNDED, ONE, OTHER, NOISE)
    assert found.long
    assert abs(found.along / found.size - share) < 0.15
    assert found.walked is (share == 1.0)


def test_what_does_the_same_cannot_be_told():
    found = way(ONE + ROUNDED, ONE, ONE, NOISE)
    assert not found.long and not found.walked


@pytest.mark.parametrize(
    ("share", "size", "walked"),
    [(0.8, 900.0, True), (0.7, 900.0, False), (0.7, 1100.0, True), (0.6, 1100.0, False)],
)
def test_of_a_long_way_less_is_enough(share, size, walked):
    """By hand: rounding goes a part of any way, but never so far."""
    assert Way(share * size, size, 100).walked is walked


def test_a_token_that_went_elsewhere_does_not_count():
    """By law: neither does one with a number that is none."""
    port = OTHER.copy()
    port[3], port[4, 7] = 100.0, np.nan
    found = way(port, ONE, OTHER, NOISE)
    assert found.walked and found.count == 18 * 50


def test_ways_add_up():
    """By hand."""
    assert Way(1, 2, 3) + Way(4, 5, 6) == Way(5, 7, 9)


@pytest.mark.parametrize(
    ("left", "common", "beats"),
    [(0.9, "", True), (1.4, "", False), (0.9, "one", False), (0.9, "one other", True)],
)
def test_who_beats_another(left, common, beats, monkeypatch):
    """The port is at the other's end; but what that leaves may be a third bug's. And what explains
    other pieces in the same calls is beaten by what does so too.
    """
    one, other = explanation("one", 1.1), explanation("other", left)
    shared = {atom for some in (one, other) for atom in some.atoms if atom.hypothesis.id in common}
    made = {one.atoms: ONE, other.atoms: OTHER}
    monkeypatch.setattr(duel, "value", lambda piece, this, trial: made[this.atoms])
    trial = SimpleNamespace(
        tokens=lambda value, target: value, port=lambda target: OTHER + ROUNDED,
        relative_noise=lambda piece, rows: NOISE,
    )  # fmt: skip
    found = ways(Piece(0, (0,)), [one, other], trial, shared)  # pyright: ignore[reportArgumentType]
    assert any(found[pair].walked for pair in found) is beats


def explanation(name: str, left: float) -> Explanation:
    atom = Atom(Hypothesis(None, name, "", 0, frozenset()), frozenset([0]))  # pyright: ignore[reportArgumentType]
    return Explanation(frozenset([atom]), SimpleNamespace(ratio=left))  # pyright: ignore[reportArgumentType]
