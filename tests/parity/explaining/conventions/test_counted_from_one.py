"""A right port whose positions count from 1. By law: it is, to the bit, a way that is legal then.

The limit of a row is the largest that the legal ways show, so that nothing else is within it.
"""

import pytest

from lockstep.parity.explaining import diagnosing
from lockstep.parity.judging import judge
from tests.parity.explaining.ports import explained, ids, port

NAME = "models/untied_float32"
ONE = "rope-pos-starts-at-1"


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    limits = judge.Limits(whole=1.5, single=2.0, row=1.0 + 1e-9, cell=1e9)
    monkeypatch.setitem(judge.LIMITS, "float16", limits)


def test_what_rounds_as_from_one_is_right():
    found = explained(NAME, port(NAME, [ONE], dtype="float16"))
    assert found.verdict == "clean"
    (line,) = (one for one in found.conventions if "counted from 1" in one)
    assert "self_attn.o_proj rounds as it does then" in line


def test_without_it_that_would_be_an_alarm(monkeypatch):
    monkeypatch.setattr(diagnosing, "sort_counted", lambda case: [])
    assert explained(NAME, port(NAME, [ONE], dtype="float16")).verdict != "clean"


@pytest.mark.parametrize("bug", ["attn-scale-twice", "rope-query-position-shifted"])
def test_a_bug_is_no_matter_of_counting(bug):
    found = explained(NAME, port(NAME, [bug], dtype="float16"))
    assert ids(found) == {bug}
    assert not any("counted from 1" in one for one in found.conventions)


def test_where_turned_keys_show_they_are_counted_from_one():
    found = explained(NAME, port(NAME, [ONE], dtype="float16", level="taps"))
    assert not found.faults and any(ONE in one for one in found.conventions)
