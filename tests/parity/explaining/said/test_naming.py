"""Where a bug is said to be: in what it was planted, however large the pieces of a dump are."""

from types import SimpleNamespace

import pytest

from lockstep.parity.explaining.said.naming import told_beside
from tests.parity.explaining.ports import explained, port


@pytest.mark.parametrize("level", ["layers", "logits"])
@pytest.mark.parametrize(
    ("name", "bug", "tap"),
    [
        ("models/untied_float32", "sub-norm-eps-default", "model.layers.1.self_attn.q_norm"),
        ("models/untied_float32", "norm-result-discarded", "model.layers.0.input_layernorm"),
        ("models/untied_float32", "rope-pairing-swapped", "model.layers.0.self_attn.k_rope"),
        ("gemma4/sparse", "softmax-wrong-axis[over heads]", "model.layers.1.self_attn.probs"),
        ("gemma4/sparse", "act-silu-vs-gelu[silu for gelu]", "model.layers.0.mlp.act_fn"),
    ],
)
def test_the_module_is_told_where_layers_or_logits_alone_were_dumped(name, bug, tap, level):
    """By law: the bug was planted in the making of one value."""
    taps = port(name, [bug], level=level, where=lambda call: tap in call.taps)
    diagnosis = explained(name, taps)
    (found,) = diagnosis.faults
    assert bug.startswith(found.id) and found.put_into == [tap]
    assert f"put into    {tap}\n" in str(diagnosis)


def test_nothing_is_said_twice():
    """By law: a piece that is one value is where its bug was put."""
    (found,) = explained("gemma4/sparse", port("gemma4/sparse", ["act-silu-vs-gelu"])).faults
    assert not found.put_into


@pytest.mark.parametrize(
    ("id", "others", "told"),
    [
        ("listed", {"number", "other"}, {"other"}),
        ("number", {"listed", "other"}, {"listed", "other"}),
    ],
)
def test_a_number_is_no_rival_of_a_class_with_forms_of_its_own(id, others, told):
    """By hand: a class without forms is one of numbers that are fitted."""
    faults = {
        name: SimpleNamespace(variants={} if name == "number" else {"": None})
        for name in ("listed", "number", "other")
    }
    bug = SimpleNamespace(
        hypothesis=SimpleNamespace(id=id, fault=faults[id]),
        ties={(other, "some form") for other in {*others, id}},
    )
    assert told_beside(bug, SimpleNamespace(faults=faults)) == told  # pyright: ignore
