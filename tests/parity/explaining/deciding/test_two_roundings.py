"""Two bugs below a rounding that hide each other's votes are heard together. By witness."""

import pytest

from lockstep.parity.explaining.deciding.two_roundings import heard_together
from lockstep.parity.explaining.deciding.votes import Ballot
from tests.parity.explaining.ports import explained, port

NAME = "models/sliding_bfloat16"
TWO = {
    "softmax-low-precision": "in bfloat16",
    "rope-inv-freq-half": "frequencies in bfloat16",
}


@pytest.mark.parametrize("more", [{}, {"rms-eps-wrong": "eps = 1e-05"}])
def test_both_are_named_whatever_else_is_heard(more):
    bugs = TWO | more
    dump = port(NAME, [f"{id}[{variant}]" for id, variant in bugs.items()], dtype="bfloat16")
    found = explained(NAME, dump)
    assert {one.id: one.variant for one in found.faults} == bugs
    votes = [one.votes for one in found.faults if one.id in TWO]
    assert all(one and one["fault"] > 100 * one["right"] for one in votes)


def test_nobody_is_asked_where_right_calls_give_the_ports_bits(monkeypatch):
    """By hand: of a piece that is heard no two bugs are thought of."""
    trial = type("Trial", (), {"graph": type("Of", (), {"several": lambda self, piece: False})()})()
    ballot = Ballot(trial, [], {})  # pyright: ignore[reportArgumentType]
    asked = []
    module = "lockstep.parity.explaining.deciding.two_roundings"
    monkeypatch.setattr(f"{module}.atoms", lambda one, piece: [one])
    monkeypatch.setattr(f"{module}.likely", lambda *given: asked.append(given) or [])
    for share in (0.95, 0.5):
        monkeypatch.setattr(ballot, "convention", lambda piece, more, s=share: (None, s))
        ballot.kinds = {("attention",): ["piece"]}  # pyright: ignore[reportAttributeAccessIssue]
        assert heard_together(ballot, ["one", "other"]) == []  # pyright: ignore[reportArgumentType]
        assert len(asked) == (share < 0.9)
