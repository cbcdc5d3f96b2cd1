"""Where the logits are right, nothing is named that they would show. By law, and by hand."""

import pytest

from lockstep.parity.explaining.deciding.refuted import is_refuted
from tests.parity.explaining.ports import explained, ids, port

PLAIN = "models/untied_float32"
ONE, OTHER = (f"model.layers.1.{name}" for name in ("input_layernorm", "post_attention_layernorm"))


def exchanged(taps):
    """Return the taps with two of them under each other's names."""
    return taps | {ONE: taps[OTHER], OTHER: taps[ONE]}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_taps_under_each_others_names_are_no_bugs_of_the_port(dtype):
    found = explained(PLAIN, exchanged(port(PLAIN, [], dtype=dtype)))
    assert (found.verdict, found.faults, found.counterfactual) == ("unknown", [], [])
    assert {ONE, OTHER} <= {one.tap for one in found.unexplained}
    (line,) = (one for one in found.conventions if one.startswith("the logits are right"))
    assert "under each other's names" in line


def test_a_bug_that_the_logits_show_is_named_beside_them():
    found = explained(PLAIN, exchanged(port(PLAIN, ["attn-scale-twice"])))
    assert "attn-scale-twice" in ids(found)
    assert not any(one.startswith("the logits are right") for one in found.conventions)


def test_without_logits_nobody_knows():
    taps = port(PLAIN, ["attn-scale-twice"])
    found = explained(
        PLAIN, {tap: x for tap, x in taps.items() if tap not in ("logits", "lm_head")}
    )
    assert ids(found) == {"attn-scale-twice"}


@pytest.mark.parametrize(
    ("actual", "predicted", "refuted"),
    [
        (1e-6, 0.5, True),
        (1e-6, 1e-5, False),
        (1e-3, 0.5, False),
        (0.0, 0.5, True),
        (0.0, 0.0, False),
    ],
)
def test_it_takes_right_logits_that_would_be_far_off(actual, predicted, refuted):
    fixes = [{"logits_error": one} for one in (actual, 9.0, predicted)]
    assert is_refuted(fixes, 1e-7) == refuted
    assert not is_refuted([], 1e-7)
