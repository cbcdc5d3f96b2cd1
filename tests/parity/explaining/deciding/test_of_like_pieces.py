"""What explains like pieces in full goes before a smaller set that leaves more. By law."""

import pytest

from lockstep.parity.explaining import diagnosing
from lockstep.parity.explaining.deciding.known_elsewhere import distance, explained_by
from tests.parity.explaining.ports import explained, ids, port

NAME, OTHER = "models/untied_float32", "kv-not-reset-between-prompts"
BUGS = ["mask-causal-missing", "act-silu-vs-gelu"]
VARIANTS = ["nothing is masked", "gelu (tanh) for silu"]


@pytest.fixture
def tampered(monkeypatch):
    """Let one layer be explained by one bug that is near, before like pieces are asked."""
    prefer, seen = diagnosing.prefer_like_pieces, []

    def changed(case):
        other = next(one for one in case.hypotheses if one.id == OTHER)
        piece, some = next(entry for entry in case.explained if len(entry[1][0].bugs) == 2)
        some[:] = [explained_by(other, piece, case)]
        seen.append(distance(some[0].atoms, piece, case))
        prefer(case)

    monkeypatch.setattr(diagnosing, "prefer_like_pieces", changed)
    return seen


def test_a_bug_that_stands_for_two_of_like_pieces_gives_way_to_them(tampered):
    named = [f"{bug}[{variant}]" for bug, variant in zip(BUGS, VARIANTS, strict=True)]
    found = explained(NAME, port(NAME, named, level="layers"))
    assert ids(found) == {*BUGS} and not found.unexplained
    assert len(tampered) == 1 and tampered[0] > 0
