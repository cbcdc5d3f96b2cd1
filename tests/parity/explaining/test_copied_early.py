"""A port whose hooks copied noughts: nothing is named by them, and the rest is judged. By law."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.parity.explaining import copied_early
from tests.parity.explaining.ports import explained, ids, port

PLAIN = "models/tied_bfloat16"


def blank(taps, *ends):
    """Return taps of which those whose names end so are nought everywhere."""
    return {tap: np.zeros_like(x) if tap.endswith(ends) else x for tap, x in taps.items()}


def test_a_dump_of_noughts_alone_is_doubted():
    taps, doubts = blank(port(PLAIN, []), ""), []
    found = explained(PLAIN, taps, doubt=doubts.append)
    (line,) = doubts
    assert "nought everywhere: if they were copied before they were computed" in line
    assert line in found.conventions


@pytest.mark.parametrize("ends", [["mlp.act_fn"], ["q_proj", "q_norm"], ["layers.0"]])
def test_taps_that_were_copied_early_are_no_bugs_and_nothing_is_known_of_them(ends):
    taps = blank(port(PLAIN, []), *ends)
    found = explained(PLAIN, taps)
    assert (found.verdict, found.faults) == ("unknown", [])
    wrong = {one.tap for one in found.unexplained}
    assert wrong == {tap for tap, value in taps.items() if not value.any()}
    (line,) = (one for one in found.conventions if "nought everywhere" in one)
    assert all(end in line for end in ends)


def test_bugs_beside_such_a_tap_are_named():
    taps = blank(port(PLAIN, ["rope-sign-flipped"]), "q_proj")
    found = explained(PLAIN, taps)
    assert ids(found) == {"rope-sign-flipped"}
    assert all(one.tap.endswith("q_proj") for one in found.unexplained)


def test_noughts_that_the_port_went_on_from_are_a_bug():
    bug = "strict-false-drops-tensors"
    taps = port(PLAIN, [f"{bug}[matrices of 0]"], where=lambda call: call.place.endswith("q_proj"))
    assert not taps["model.layers.0.self_attn.q_proj"].any()
    found = explained(PLAIN, taps)
    assert ids(found) == {bug}
    assert not any("nought everywhere" in one for one in found.conventions)


@pytest.mark.parametrize(
    ("without", "passed", "goes_on"),
    [(30.0, [False], False), (57.0, [False], True), (30.0, [False, True], True)],
)
def test_what_is_right_with_noughts_alone_says_more_than_what_has_a_bug_of_its_own(
    without, passed, goes_on, monkeypatch
):
    """By hand: a norm with a bug is nearer without them, by chance; the sum is right with them."""
    distances = {0: (394.0, without), 1: (1.0, 30.0)}  # with noughts, and without

    def trial(which: int) -> Any:
        def look(piece: Any, calls: Any) -> Any:
            return SimpleNamespace(raw=lambda skip, rows: distances[piece.target][which])

        def judge(piece: Any) -> Any:
            return SimpleNamespace(passed=passed[piece.target])

        graph = SimpleNamespace(piece=lambda target, dumped: SimpleNamespace(target=target))
        return SimpleNamespace(look=look, judge=judge, graph=graph, dumped=distances)

    pieces = [SimpleNamespace(target=target) for target in range(len(passed))]
    monkeypatch.setattr(copied_early, "takers_of", lambda number, there: pieces)
    assert copied_early.goes_on_from(7, trial(0), trial(1)) == goes_on
