"""Projections that were never loaded are known by their size and by nothing else. By law."""

import warnings

import numpy as np
import pytest

from lockstep.parity.explaining.searching.untrained import Sample
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways
from tests.parity.explaining.ports import explained, graph_of, is_of, model_of, port

NAME = "models/untied_float32"
RIGHT = port(NAME)


def projected(weight_of):
    """Return a dump in which one projection is by another matrix, from inputs of its own."""
    taps = dict(RIGHT)
    x = taps["model.layers.1.post_attention_layernorm"]
    y = taps["model.layers.1.mlp.gate_proj"]
    taps["model.layers.1.mlp.gate_proj"] = (x @ weight_of((x.shape[-1], y.shape[-1]))).astype(
        np.float32
    )
    return taps


def drawn(deviation):
    return lambda shape: np.random.default_rng(5).standard_normal(shape) * deviation


def test_random_numbers_of_a_fresh_module_are_named():
    found = explained(NAME, projected(drawn(0.02)))
    (fault,) = (one for one in found.faults if one.taps == ["model.layers.1.mlp.gate_proj"])
    assert fault.id == "strict-false-drops-tensors"
    assert fault.variant == "never loaded: random numbers of deviation 0.02"


@pytest.mark.parametrize("deviation", [0.005, 0.035, 0.2, 2.0])
def test_random_numbers_of_another_size_have_no_name(deviation):
    found = explained(NAME, projected(drawn(deviation)))
    assert "model.layers.1.mlp.gate_proj" in {one.tap for one in found.unexplained}


def test_numbers_that_cannot_be_squared_have_no_size():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sample(np.full((40, 40), 1e200), np.ones((40, 40)), 40).size is None


def test_a_right_port_was_loaded():
    assert explained(NAME, RIGHT).verdict == "clean"


def layers_with(weight_of, dtype="float32"):
    """Return what a port dumps of its layers, with another matrix behind the second one's heads."""
    model, graph = model_of(NAME), graph_of(NAME)
    run = Evaluator(
        graph, ways(np.dtype(dtype))[1][0], np.dtype(dtype), {}, Tensors(model.checkpoint)
    )
    call = next(
        call for call in graph.calls
        if call.op == "linear" and call.layer == 1 and call.place.endswith("o_proj")
    )  # fmt: skip
    wrong = call.with_changed(1, lambda ops, weight: weight_of(weight.shape).astype(np.float32))
    taps = {tap: run.target(number, {call.number: wrong}) for tap, number in graph.taps.items()}
    return {tap: value for tap, value in taps.items() if is_of("layers", tap)}


def test_random_numbers_are_named_in_a_dump_of_the_layers():
    """By hand: the MLP behind them is undone, and what is left is by the matrix that was drawn."""
    found = explained(NAME, layers_with(drawn(0.02)))
    (fault,) = found.faults
    assert (fault.id, fault.taps) == ("strict-false-drops-tensors", ["model.layers.1"])
    assert fault.variant == "never loaded: random numbers of deviation 0.02"


@pytest.mark.parametrize("deviation", [0.006, 0.05, 0.25])
def test_random_numbers_of_another_size_have_no_name_in_a_layer(deviation):
    known = [one for one in catalogue() if one.id == "strict-false-drops-tensors"]
    found = explained(NAME, layers_with(drawn(deviation)), known)
    assert found.faults == []
    assert [one.tap for one in found.unexplained] == ["model.layers.1"]
