"""Biases that are left out, added twice, or another projection's: by hand and by law."""

import numpy as np
import pytest

from lockstep.parity.graph import Value
from lockstep.reference import ops
from tests.parity.explaining.ports import explained, port
from tests.parity.faults.hand_made import call, graph_of, value_of, variant, wrong
from tests.parity.faults.planted import world

RNG = np.random.default_rng(29)
HEADS, WIDTH, LENGTH, HIDDEN = 2, 4, 5, 6
POSITIONS = np.arange(LENGTH)[None]
BOTH = ["", "the projection dumped with it"]


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


def turned():
    """Queries of two heads, with a bias."""
    return graph_of(
        call(0, "rope_frequencies", theta=100.0, dims=WIDTH),
        call(1, "scale", RNG.standard_normal((1, LENGTH, HIDDEN)), by=1.0),
        call(2, "linear", Value(1), W, BIAS, place="self_attn.q_proj", layer=0),
        call(3, "split_heads", Value(2), heads=HEADS),
        call(4, "heads_first", Value(3)),
        call(5, "rope", Value(4), POSITIONS, Value(0), factor=1.0, layer=0),
    )


W = RNG.standard_normal((HEADS * WIDTH, HIDDEN))
BIAS = RNG.standard_normal(HEADS * WIDTH)


@pytest.mark.parametrize("name", BOTH)
def test_a_bias_behind_the_turn_by_loop(name, monkeypatch):
    """What the product gives is turned, and each number of the bias is added to its own."""
    monkeypatch.setattr("lockstep.parity.faults.biases.named", lambda ref: "self_attn.q_proj.bias")
    graph = turned()
    found = wrong(graph, variant("bias-behind-turn", name))
    product = (value_of(graph, 1) @ W.T).reshape(LENGTH, HEADS, WIDTH)
    for head, token in np.ndindex(HEADS, LENGTH):
        for j, frequency in enumerate((1.0, 0.1)):
            one, other = product[token, head, j], product[token, head, j + 2]
            turn = np.cos(token * frequency), np.sin(token * frequency)
            expected = np.array([one * turn[0] - other * turn[1], other * turn[0] + one * turn[1]])
            own = BIAS[head * WIDTH + j], BIAS[head * WIDTH + j + 2]
            np.testing.assert_allclose(found[0, head, token, [j, j + 2]], expected + own)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_a_bias_behind_the_turn_is_named(name, level):
    """By law. From layers alone nothing tells what the projection would have been dumped as."""
    model, id = "llama/biased_llama3", "bias-behind-turn"
    found = explained(model, port(model, [f"{id}[{name}]"], level=level))
    assert {one.id for one in found.faults} == {id} and not found.unexplained


def test_a_turn_that_is_wrong_stays_before_the_bias(monkeypatch):
    monkeypatch.setattr("lockstep.parity.faults.biases.named", lambda ref: "self_attn.q_proj.bias")
    graph = turned()
    behind, backwards = variant("bias-behind-turn"), variant("rope-sign-flipped")

    def both(one, graph):
        new = behind(one, graph) or one
        return backwards(new, graph) or new

    product = (value_of(graph, 1) @ W.T).reshape(1, LENGTH, HEADS, WIDTH).swapaxes(1, 2)
    turn = ops.rope(product, -POSITIONS, value_of(graph, 0), factor=1.0)
    expected = turn + BIAS.reshape(HEADS, 1, WIDTH)
    np.testing.assert_allclose(wrong(graph, both), expected, atol=1e-12)
