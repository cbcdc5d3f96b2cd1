"""Logits that a port calls its head are no bug, and a cap that is missing stays one. By law."""

import numpy as np
import pytest

from tests.parity.explaining.ports import explained, ids, port

GEMMA = "gemma4/sparse"


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_capped_logits_under_the_name_of_the_head_are_no_bug(level):
    taps = port(GEMMA, level=level)
    logits, _ = taps.pop("logits"), taps.pop("lm_head", None)
    found = explained(GEMMA, taps | {"head": logits})
    assert found.verdict == "clean"
    assert any("read as logits" in line for line in found.conventions)


def test_a_head_before_its_cap_stays_one():
    taps = port(GEMMA)
    taps = {tap: value for tap, value in taps.items() if tap != "logits"}
    found = explained(GEMMA, taps)
    assert (found.verdict, found.conventions) == ("clean", [])


def test_logits_that_lack_the_cap_are_a_bug():
    taps = port(GEMMA, ["final-softcap-missing"])
    del taps["lm_head"]
    assert not np.array_equal(taps["logits"], port(GEMMA)["logits"])
    assert ids(explained(GEMMA, taps)) == {"final-softcap-missing"}
