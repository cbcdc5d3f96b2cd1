"""A bug that only widens the noise is none, however well it passes beside others. By law."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.parity.explaining import diagnosing
from lockstep.parity.explaining.deciding.helping import helps
from lockstep.parity.explaining.searching.hypothesis import Atom
from lockstep.parity.explaining.searching.look import Look
from tests.parity.explaining.ports import explained, ids, port

NAME, BUG, ROUNDING = "llama/mistral_window", "norm-applied-twice", "rope-cos-sin-half"


def look(errors, *, careful=True):
    """Return the look of a hypothesis that the port is so far from, token by token."""
    wrong = np.ones((len(errors), 1))
    port = wrong + np.array(errors, float)[:, None]
    return Look.of(port, wrong, wrong, 0.01, careful=careful)


@pytest.mark.parametrize(
    ("before", "after", "careful", "helping"),
    [
        ([1.0, 1.0, 4.0], [1.0, 1.0, 4.0], True, False),
        ([1.0, 1.0, 4.0], [1.1, 0.9, 3.9], True, False),
        ([1.0, 1.0, 4.0], [1.0, 1.0, 1.0], True, True),  # the worst token
        ([2.0, 2.0, 2.1], [1.0, 1.0, 2.1], True, True),  # all of them
        ([1.0, 1.0, 4.0], [2.0, 2.0, 1.0], True, True),
        ([1.0, 1.0, 4.0], [1.0, 1.0, 4.0], False, True),  # a router may have turned it
        ([1.0, 1.0, np.nan], [1.0, 1.0, np.nan], True, True),
    ],
)
def test_what_takes_a_clear_part_of_the_error_away_helps(before, after, careful, helping):
    assert helps(look(after, careful=careful), look(before, careful=careful)) == helping


def test_a_rounding_that_passes_beside_a_bug_is_taken_out(monkeypatch):
    """By hand: to each explanation a bug is added that the port does not have."""
    ended = diagnosing.keep_ended

    def with_more(case):
        more = next(one for one in case.hypotheses if one.id == ROUNDING)
        for _, some in case.explained:
            some[:] = [replace(one, atoms=one.atoms | {Atom(more, more.calls)}) for one in some]
        ended(case)

    monkeypatch.setattr(diagnosing, "keep_ended", with_more)
    found = explained(NAME, port(NAME, [BUG], level="layers", dtype="float16"))
    assert ids(found) == {BUG} and not found.unexplained


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_a_rounding_that_is_there_stays_beside_a_bug(level):
    bugs = {"rope-sign-flipped", "norm-low-precision-accumulate"}
    found = explained(NAME, port(NAME, sorted(bugs), level=level, dtype="float16"))
    assert ids(found) == bugs and not found.unexplained
