"""Gemma's dense MLP and the experts beside it, each with its norms. By loop: `test_layers.py`."""

import pytest

from tests.parity.explaining.ports import explained, ids, port
from tests.parity.faults.test_layers import GEMMA, LAYER, close, right, unit, weight, wrong

FIRST, SECOND, BOTH = (f"post_feedforward_layernorm{n}" for n in ("_1", "_2", ""))
CROSSED = "after the MLP and after the experts, each dumped by its name"
BESIDE = [
    ("branch-not-added", "the experts' beside a dense MLP", BOTH, FIRST),
    ("branch-not-added", "the dense MLP's beside experts", BOTH, SECOND),
    ("ffn-norms-swapped", CROSSED, FIRST, "experts"),
    ("ffn-norms-swapped", CROSSED, SECOND, "mlp.down_proj"),
    ("moe-experts-input-wrong", "their norm of what the dense MLP says, normalised",
     "pre_feedforward_layernorm_2", FIRST),
    ("residual-missing", "into the MLP's norm alone, as attention gives it",
     "pre_feedforward_layernorm", "self_attn.o_proj"),
]  # fmt: skip


@pytest.mark.parametrize(("id", "variant", "norm", "read"), BESIDE)
def test_a_norm_reads_something_else(id, variant, norm, read):
    expected = unit(right(GEMMA, f"{LAYER}.{read}")) * weight(GEMMA, f"{LAYER}.{norm}.weight")
    close(wrong(GEMMA, f"{LAYER}.{norm}", id, variant), expected)


@pytest.mark.parametrize(("id", "variant"), dict.fromkeys(case[:2] for case in BESIDE))
def test_it_is_named(id, variant):
    found = explained(GEMMA, port(GEMMA, [f"{id}[{variant}]"]))
    assert [(one.id, one.variant) for one in found.faults] == [(id, variant)]
    assert not found.unexplained


@pytest.mark.parametrize("variant", [case[1] for case in BESIDE[:2]])
def test_a_branch_that_is_not_added_is_named_from_layers(variant):
    """Matrices of 0, a tensor for each of three, would do the same to the experts."""
    found = explained(GEMMA, port(GEMMA, [f"branch-not-added[{variant}]"], level="layers"))
    assert ids(found) == {"branch-not-added"} and not found.unexplained
    assert variant in found.faults[0].variant
