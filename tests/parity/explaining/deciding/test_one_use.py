"""Of a value one use alone is wrong: what makes the value wrong spoils the other one. By law."""

import pytest

from lockstep.parity.explaining.said.counterfactual import not_accounted_for
from tests.parity.explaining.ports import explained, port

NAME = "models/untied_float32"
NORM_ALONE = "residual-missing[into the next norm alone]"


def of_the_mlp(call):
    return call.place == "post_attention_layernorm"


def test_a_stream_that_is_missing_in_one_norm_is_not_missing_behind_it():
    found = explained(NAME, port(NAME, [NORM_ALONE], where=of_the_mlp))
    (one,) = found.faults
    assert (one.id, one.variant) == ("residual-missing", "into the next norm alone")
    assert found.counterfactual[-1]["logits_error"] < 1e-5 and not found.conventions


@pytest.mark.parametrize("level", ["modules", "layers"])
def test_a_branch_that_is_added_to_what_went_into_the_layer_is_not_lost(level):
    """The MLP has heard of attention, and what comes behind has not."""
    found = explained(NAME, port(NAME, ["residual-from-before-attention"], level=level))
    (one,) = found.faults
    assert one.id == "residual-from-before-attention" and not found.conventions
    assert found.counterfactual[-1]["logits_error"] < 1e-5


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [(1.0, 1.2, True), (1.0, 0.6, True), (1.0, 0.4, False), (0.06, 0.04, False), (0.0, 0.0, False)],
)
def test_it_is_told_if_all_fixed_fixes_nothing_by_hand(before, after, told):
    rows = [{"fixed": [], "logits_error": before}, {"fixed": ["x"], "logits_error": after}]
    assert bool(not_accounted_for(rows)) == told
    assert not_accounted_for([]) == []
