"""What a comparison says of itself, as objects and as JSON. By hand."""

import json

import numpy as np
import pytest

from lockstep.parity.judging.result import Result, Tap


def tap(name, status, **figures):
    return Tap(name=name, op="linear", shape=(1, 2), status=status, **figures)


@pytest.mark.parametrize("status", ["diverged", "differs"])
def test_the_first_tap_that_is_wrong_in_itself_is_the_verdict(status):
    taps = [tap("a", "ok"), tap("b", "inherited"), tap("c", status), tap("d", "diverged")]
    result = Result("left", "right", taps)
    assert result.first_divergence is taps[2]
    assert result.verdict == "diverged"
    assert [one.is_wrong for one in taps] == [False, False, True, True]


def test_what_was_not_judged_does_not_count_as_compared():
    result = Result("left", "right", [tap("a", "ok"), tap("b", "not judged")])
    assert (result.compared, result.verdict) == (1, "parity")


def test_without_one_it_is_parity():
    result = Result("left", "right", [tap("a", "ok"), tap("b", "inherited")])
    assert (result.first_divergence, result.verdict) == (None, "parity")


def test_json_names_what_it_cannot_hold():
    found = tap("a", "diverged", ratio=np.inf, noise=-np.inf, own_error=np.nan, gain=1.5)
    written = json.dumps(Result("left", "right", [found]).to_json(), allow_nan=False)
    read = json.loads(written)
    assert (read["verdict"], read["first_divergence"], read["compared"]) == ("diverged", "a", 1)
    [one] = read["taps"]
    assert (one["ratio"], one["noise"], one["own_error"], one["gain"]) == (
        "inf",
        "-inf",
        "nan",
        1.5,
    )
    assert (one["shape"], one["cosine"]) == ([1, 2], None)
    assert set(one) <= set(Tap.__dataclass_fields__)
