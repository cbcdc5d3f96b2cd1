"""A port that leaves a layer out and counts what it runs has the next one in each. By law."""

import pytest

from tests.parity.explaining.ports import explained, ids, model_of, port, rewrite_of

SMALL, GPT2 = "models/untied_float32", "gpt2/original"
NEXT = rewrite_of("layers-swapped[layer i has i + 1]")
PAST = rewrite_of("layer-left-out")


def without_first(name, level):
    """Return what a port dumps that runs all layers but the first, which it counts from 0."""
    last = model_of(name).config.num_hidden_layers - 1

    def wrong(call, graph):
        return PAST(call, graph) if call.layer is None else NEXT(call, graph)

    taps = port(name, [wrong], where=lambda call: call.layer != last, level=level)
    return {tap: value for tap, value in taps.items() if f".{last}" not in tap}


@pytest.mark.parametrize("level", ["modules", "layers"])
@pytest.mark.parametrize("name", [SMALL, GPT2])
def test_a_layer_that_was_left_out_of_the_count_is_one_bug(name, level):
    found = explained(name, without_first(name, level))
    (one,) = found.faults
    assert (one.id, one.layers, one.also_fits) == ("layer-left-out", [0], [])
    assert not found.unexplained
    assert found.counterfactual[-1]["logits_error"] < 1e-5 < found.counterfactual[0]["logits_error"]


def test_layers_of_the_next_ones_alone_are_no_layer_that_was_left_out():
    """The last layer is run too, twice."""
    last = model_of(SMALL).config.num_hidden_layers - 1
    taps = port(SMALL, [NEXT], where=lambda call: call.layer != last)
    assert ids(explained(SMALL, taps)) == {"layers-swapped"}
