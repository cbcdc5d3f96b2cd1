"""Biases that are left out, added twice, or another projection's: by hand and by law."""

import numpy as np
import pytest

from lockstep.reference import ops
from tests.parity.explaining.ports import explained, port
from tests.parity.faults.hand_made import variant
from tests.parity.faults.planted import world


def test_biases_are_dropped_by_their_modules():
    """By law: the two entries share the biased projections out between them."""
    here = world("llama/biased_llama3")
    ours = {one.place for one in here.calls(variant("qkv-bias-dropped")).values()}
    others = {one.place for one in here.calls(variant("o-proj-mlp-bias-dropped")).values()}
    assert ours == {f"self_attn.{name}_proj" for name in "qkv"}
    assert others == {"self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
    for one in here.calls(variant("qkv-bias-dropped")).values():
        assert one.tensor(2) is None


def test_biases_are_added_twice_by_hand():
    bias = np.arange(4.0)
    here = world("llama/biased_llama3")
    changed = here.calls(variant("bias-added-twice"))
    assert {one.tensor(2) for one in changed.values()} == {
        name for name in here.graph.stored if name.endswith(".bias")
    }
    for number, one in changed.items():
        twice = one.inputs[2]
        assert np.array_equal(twice.change(ops, bias), 2 * bias)
        assert one.inputs[:2] == here.graph.calls[number].inputs[:2]


@pytest.mark.parametrize(("own", "other"), [("k", "v"), ("v", "k"), ("gate", "up"), ("up", "gate")])
def test_a_bias_of_another_projection_is_read(own, other):
    here = world("llama/biased_llama3")
    name = f"{own}_proj with that of {other}_proj"
    changed = here.calls(variant("bias-of-other-projection", name))
    assert len(changed) == here.graph.config.num_hidden_layers
    for number, one in changed.items():
        right = here.graph.calls[number].tensor(2)
        assert one.tensor(2) == right.replace(f"{own}_proj", f"{other}_proj") != right


@pytest.mark.parametrize(("one", "other"), [("k", "v"), ("gate", "up")])
def test_two_biases_are_exchanged(one, other):
    here = world("llama/biased_llama3")
    changed = here.calls(
        variant("bias-of-other-projection", f"{one}_proj and {other}_proj exchanged")
    )
    names = {other: one, one: other}
    found = {call.place: call.tensor(2) for call in changed.values() if call.layer == 0}
    assert len(found) == 2
    for place, tensor in found.items():
        own = next(name for name in names if f"{name}_proj" in place)
        assert f"{names[own]}_proj.bias" in tensor


@pytest.mark.parametrize(
    "bug", ["up_proj with that of gate_proj", "gate_proj and up_proj exchanged"]
)
def test_they_are_no_weights_that_undo_each_other(bug):
    """By law: gate and up exchanged twice, in two ways, leaves their biases exchanged."""
    name, id = "llama/biased_llama3", "bias-of-other-projection"
    found = explained(name, port(name, [f"{id}[{bug}]"]))
    assert [(one.id, one.variant) for one in found.faults] == [(id, bug)]
