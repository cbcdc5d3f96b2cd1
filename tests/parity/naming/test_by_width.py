"""Logits under a name that means nothing are known by their width. By hand, and by law."""

import pytest

from lockstep.parity.naming.by_width import logits_by_width
from tests.parity.explaining.ports import explained, ids, port

MODEL = "models/untied_float32"
KNOWN = {"model.layers.0": (1, 5, 8), "lm_head": (1, 5, 31), "logits": (1, 5, 31)}


@pytest.mark.parametrize("shape", [(1, 5, 31), (5, 31), (31,)])
def test_the_one_that_is_as_wide_as_the_vocabulary(shape):
    names, (line,) = logits_by_width({"y": shape, "z": (1, 5, 8)}, KNOWN, ["model.layers.0"])
    assert names == {"y": "logits"}
    assert line == "'y' is read as logits: nothing else is as wide as the vocabulary"


@pytest.mark.parametrize(
    ("left", "known", "taken"),
    [
        ({"y": (1, 5, 31), "z": (1, 5, 31)}, KNOWN, []),  # which of both?
        ({"y": (1, 5, 31)}, KNOWN, ["lm_head"]),
        ({"y": (1, 5, 31)}, KNOWN, ["logits"]),
        ({"y": (1, 5, 31)}, KNOWN | {"wide": (1, 5, 31)}, []),  # not the vocabulary alone
        ({"y": (1, 5, 30), "scores": (1, 2, 5, 31)}, KNOWN, []),
        ({"y": (1, 5, 31)}, {"model.layers.0": (1, 5, 8)}, []),
    ],
)
def test_none_is_where_it_may_be_something_else(left, known, taken):
    assert logits_by_width(left, known, taken) == ({}, [])


@pytest.mark.parametrize("bug", ["final-norm-missing", None])
def test_wrong_logits_are_not_passed_over_for_their_name(bug):
    """By law: whatever they are called, a bug behind the last layer shows."""
    taps = port(MODEL, [bug] if bug else [], level="layers")
    taps = {tap: value for tap, value in taps.items() if tap != "lm_head"}
    taps["prediction_scores"] = taps.pop("logits")
    found = explained(MODEL, taps)
    assert ids(found) == ({bug} if bug else set())
    assert any("'prediction_scores' is read as logits" in line for line in found.conventions)
    assert not found.unmatched
