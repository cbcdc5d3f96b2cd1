"""A bug whose way the port goes, but not to its end, is not what the port has."""

from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.explaining.deciding import at_its_end
from lockstep.parity.explaining.deciding.at_its_end import ended, keep_ended, noise_of
from lockstep.parity.explaining.deciding.duel import Way
from lockstep.parity.explaining.fitting import fitted
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.rewrites import NORMS, option
from lockstep.parity.graph.graph import Piece
from tests.parity.explaining.ports import explained, ids, port

NAME = "models/sliding_bfloat16"
SURE = Piece(1, ())


class Bug:
    """A bug of a set: how far along its way the port is, and how long that is, squared."""

    def __init__(self, along: float, *, size: float = 1000.0, coarse: bool = False):
        self.along, self.size = along, size
        self.hypothesis = SimpleNamespace(fault=SimpleNamespace(coarse=coarse))


@pytest.fixture
def case(monkeypatch):
    def led(piece, rest, whole, noise, trial):
        (left_out,) = whole - rest
        return Way(left_out.along * left_out.size, left_out.size, 100)

    monkeypatch.setattr(at_its_end, "led", led)
    monkeypatch.setattr(at_its_end, "made", lambda piece, atoms, trial: atoms)
    monkeypatch.setattr(at_its_end, "noise_of", lambda *given, coarse: 1.0)
    trial = SimpleNamespace(routers_of=lambda piece: piece.calls, unseen={7: None})
    return SimpleNamespace(trial=trial, open=[], explained=[])


def explanation(*bugs: Bug) -> SimpleNamespace:
    return SimpleNamespace(atoms=frozenset(bugs))


@pytest.mark.parametrize(
    ("bugs", "kept"),
    [
        ([Bug(1.0)], True),
        ([Bug(0.55)], False),  # half as far as it leads
        ([Bug(1.45)], False),  # and farther
        ([Bug(1.25)], True),
        ([Bug(0.55, size=40.0)], True),  # too short a way to tell
        ([Bug(0.55, coarse=True)], True),  # a grid turns single values
        ([Bug(1.0), Bug(0.5)], False),  # each of a set
        ([Bug(0.5, coarse=True), Bug(1.0)], True),
        ([Bug(1.0, coarse=True), Bug(0.5)], False),  # it speaks for itself alone
    ],
)
def test_the_port_must_be_at_the_end_of_each_way(case, bugs, kept):
    """By hand."""
    some = explanation(*bugs)
    assert ended(SURE, some, case.trial) is kept  # pyright: ignore[reportArgumentType]
    for unsure in (Piece(1, (1,)), Piece(7, ())):  # with a router; with tokens that prove nothing
        assert ended(unsure, some, case.trial)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("kinds", "times"), [(["fine"] * 3, 4), (["coarse"] * 3, 0), ([], 0)])
def test_what_all_bugs_make_is_computed_once(monkeypatch, kinds, times):
    """By count: all of them together, and all but each."""
    asked = []
    monkeypatch.setattr(at_its_end, "rewritten", lambda atoms, graph: {})
    graph = SimpleNamespace(token_axes={1: (1,)})
    run = SimpleNamespace(target=lambda *given: asked.append(given) or np.ones((1, 4, 2)))
    trial = SimpleNamespace(
        graph=graph, count=0, unseen={}, routers_of=lambda piece: (), centre=lambda rows: run,
        port=lambda target: np.ones((1, 4, 2)), tokens=lambda value, target: value[0],
        relative_noise=lambda *given: 1e-6,
    )  # fmt: skip
    some = explanation(*(Bug(1.0, coarse=kind == "coarse") for kind in kinds))
    assert ended(SURE, some, trial)  # pyright: ignore[reportArgumentType]
    assert len(asked) == trial.count == times


def test_beside_a_coarse_bug_all_that_is_left_is_noise():
    """By hand: a twentieth of the value is left."""
    whole = np.ones((1, 4, 2))
    trial = SimpleNamespace(port=lambda target: 1.05 * whole, relative_noise=lambda *given: 1e-6)
    found = [noise_of(SURE, whole, trial, coarse=coarse) for coarse in (True, False)]  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(found, [0.05, 1e-6])


def test_a_piece_without_an_explanation_is_open_again(case):
    """By hand."""
    right, half = explanation(Bug(1.0)), explanation(Bug(0.5))
    case.explained = [(SURE, [right, half]), (SURE, [half])]
    keep_ended(case)
    assert case.explained == [(SURE, [right])] and case.open == [SURE]


def test_an_epsilon_that_is_nearly_another_one_is_not_that(monkeypatch):
    """By law: the known one is larger by two thirds, which the gate lets pass in some norms."""
    known = [one for one in catalogue() if one.id == "rms-eps-wrong"]
    near = option(NORMS, "eps", lambda right: 6e-6)
    found = explained(NAME, port(NAME, [near]), known)
    assert [bug.variant for bug in found.faults] == ["eps = 6e-06 for 1e-06"]
    monkeypatch.setattr(fitted, "NUMBERS", {})
    found = explained(NAME, port(NAME, [near]), known)
    assert found.verdict == "unknown" and found.faults == []
    assert ids(explained(NAME, port(NAME, ["rms-eps-wrong[eps = 1e-05]"]), known)) == {
        "rms-eps-wrong"
    }
