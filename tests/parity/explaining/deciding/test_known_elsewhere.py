"""What explains most pieces explains the others too, where another bug was found first. By law."""

import pytest

from lockstep.parity.explaining import diagnosing
from lockstep.parity.explaining.deciding import under_the_gate
from lockstep.parity.explaining.deciding.known_elsewhere import counted
from lockstep.parity.explaining.deciding.votes import atoms
from lockstep.parity.explaining.explanation import Explanation
from tests.parity.explaining.ports import explained, ids, port

NAME, BUG, OTHER = "models/untied_float32", "rms-eps-wrong", "norm-eps-outside-sqrt"


@pytest.fixture
def tampered(monkeypatch):
    """Give one piece the other bug, and leave another one open, before what is known is offered."""
    offer = diagnosing.offer_known

    def changed(case):
        assert {bug.id for bug in counted(case)} == {BUG}
        other = next(one for one in case.hypotheses if one.id == OTHER)
        (piece, some), (opened, _), *_ = case.explained
        here = frozenset(atoms(other, piece))
        some[:] = [Explanation(here, some[0].judgement, complete=True)]
        case.open.append(opened)
        del case.explained[1]
        offer(case)

    monkeypatch.setattr(diagnosing, "offer_known", changed)


def test_a_bug_of_many_pieces_is_asked_of_those_that_have_another_or_none(tampered):
    found = explained(NAME, port(NAME, [f"{BUG}[eps = 1e-05]"]))
    assert ids(found) == {BUG} and not found.unexplained


@pytest.mark.parametrize(
    ("left", "good"),
    [
        ({"few": 1.0, "many": 1.2}, ["many"]),  # nearly as little, of more pieces
        ({"few": 1.0, "many": 1.3}, ["few"]),
        ({"few": 1.2, "new": 1.0}, ["few"]),
        ({"many": 2.0, "new": 1.0}, []),  # nothing known does as well
    ],
)
def test_under_the_gate_of_what_leaves_as_little_the_most_common_stays(left, good, monkeypatch):
    """By hand: distances that some bugs leave, two of which explain two pieces and five."""
    monkeypatch.setattr(under_the_gate, "atoms", lambda bug, piece: [bug])
    far = 1e300
    monkeypatch.setattr(under_the_gate, "distance", lambda some, piece, case: left.get(*some, far))
    known = {"few": 2, "many": 5}
    assert under_the_gate.as_good(known, [*left], None, None) == good  # pyright: ignore
