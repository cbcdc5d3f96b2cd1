"""A layer that adds nothing, and shows nothing of its inside, was left out. By law."""

import pytest

from lockstep.parity.explaining.deciding.left_layers import layers_before
from tests.parity.explaining.ports import explained, graph_of, ids, port

SMALL, GPT2 = "models/untied_float32", "gpt2/original"
LAST = {SMALL: 1, GPT2: 1}


def in_layer(number):
    return lambda call: call.layer == number


def behind(number, last):
    """Say which calls take what a layer hands out."""
    return lambda call: call.layer == (None if number == last else number + 1)


@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", LAST)
def test_it_is_said_which_layer_was_left_out(name, layer, level):
    where = behind(layer, LAST[name])
    found = explained(name, port(name, ["layer-left-out"], where=where, level=level))
    assert ids(found) == {"layer-left-out"}
    assert found.faults[0].layers == [layer] and not found.unexplained


@pytest.mark.parametrize("layer", [0, 1])
def test_branches_that_are_not_added_may_be_a_layer_that_was_not_run(layer):
    taps = port(SMALL, ["branch-not-added"], where=in_layer(layer), level="layers")
    found = explained(SMALL, taps)
    (one,) = found.faults
    assert (one.id, one.layers) == (
        "layer-left-out",
        [layer],
    ) and "branch-not-added" in one.also_fits
    assert found.counterfactual[-1]["logits_error"] < 1e-5 < found.counterfactual[0]["logits_error"]


def test_a_layer_that_shows_its_inside_was_run():
    found = explained(SMALL, port(SMALL, ["branch-not-added"], where=in_layer(0)))
    assert ids(found) == {"branch-not-added"} and found.faults[0].layers == [0]


def test_one_branch_is_no_layer():
    def of_attention(call):
        return call.layer == 0 and call.place == "residual"

    found = explained(SMALL, port(SMALL, ["branch-not-added"], where=of_attention, level="layers"))
    assert "layer-left-out" not in ids(found)


def test_what_a_layer_that_is_left_out_would_take_counts_for_nothing():
    """By hand: the norm behind the last layer, and what the last takes: the last alone is out."""
    graph = graph_of(SMALL, 20)
    norm = graph.taps["model.norm"]
    taker = next(call.number for call in graph.calls if call.layer == 1 and call.op == "rms_norm")
    assert layers_before({norm}, graph) == layers_before({norm, taker}, graph) == {1}
    assert layers_before({taker}, graph) == {0}


@pytest.mark.parametrize("shown", [True, False])
def test_a_layer_that_alone_shows_nothing_was_not_run_whatever_else_others_have(shown):
    """By law: matrices of nought in the first layer may be in the last one too, if that was run."""

    def where(call):
        behind_all = call.layer is None and call.op == "rms_norm"
        return behind_all or (call.layer == 0 and call.place == "self_attn.o_proj")

    bugs = ["layer-left-out", "strict-false-drops-tensors[matrices of 0]"]
    taps = port(SMALL, bugs, where=where)
    ends = () if shown else ("model.layers.1",)
    found = explained(SMALL, {tap: x for tap, x in taps.items() if not tap.startswith(ends)})
    named = {one.id: one.layers for one in found.faults}
    assert named == {"layer-left-out": [1], "strict-false-drops-tensors": [0]}
