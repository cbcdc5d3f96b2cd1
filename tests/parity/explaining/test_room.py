"""Adapters on other layers than their own, beside what else is wrong with them. By law."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining.room import with_room
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.graph import Evaluator, record
from lockstep.parity.noise import ways
from tests.parity.explaining.ports import dumped, ids, is_of, rewrite_of
from tests.parity.faults.planted import loaded
from tests.sampled import sampled

long = sampled(0)  # of the proofs below that take seconds each

TOKENS = np.arange(1, 15)[None]
FLOAT32 = np.dtype(np.float32)
ADAPTED = "adapters/mlx_lora"  # of the last layer of two


def with_adapters(change):
    """Return the model with the adapters that `change(path, adapter)` gives, each with its path."""
    model = copy(loaded(ADAPTED))
    pairs = (change(path, one) for path, one in model.adapters.modules.items())
    model.adapters = replace(model.adapters, modules=dict(filter(None, pairs)))
    return model


def on_the_first_layer(path, adapter, by=1.0):
    return path.replace(".layers.1.", ".layers.0."), replace(adapter, scale=adapter.scale * by)


def found_of(model, *bugs, level="modules", faults=None, right=None):
    """Explain what a port with such adapters, and bugs, dumps, as one of the `right` model."""
    graph = record(model, TOKENS)
    calls = {call.number: call for call in graph.calls}
    for bug in bugs:
        calls = {n: rewrite_of(bug)(call, graph) or call for n, call in calls.items()}
    wrong = {n: call for n, call in calls.items() if call is not graph.calls[n]}
    assert wrong or not bugs
    run = Evaluator(graph, ways(FLOAT32)[1][0], FLOAT32, {}, Tensors(model.checkpoint))
    taps = {tap: run.target(n, wrong) for tap, n in graph.taps.items() if is_of(level, tap)}
    right = right or loaded(ADAPTED)
    return explain(right, dumped(taps), tokens=TOKENS[0].tolist(), faults=faults)


@long
@pytest.mark.parametrize("level", ["modules", "layers"])
def test_moved_adapters_are_told_beside_a_wrong_scale(level):
    moved = with_adapters(lambda path, one: on_the_first_layer(path, one, 1 / 3))
    found = found_of(moved, level=level)
    assert ids(found) == {"lora-layer-offset", "lora-scale-divided-again"}
    assert found.unexplained == []


@long
def test_moved_adapters_are_told_beside_their_rounding_and_turned_factors():
    bugs = ["lora-factors-transposed[A alone]", "lora-merge-rounding[in bfloat16]"]
    found = found_of(with_adapters(on_the_first_layer), *bugs)
    assert ids(found) == {"lora-layer-offset", *(bug.partition("[")[0] for bug in bugs)}
    assert found.unexplained == []


@long
def test_moved_adapters_alone_are_told_alone():
    found = found_of(with_adapters(on_the_first_layer))
    assert ids(found) == {"lora-layer-offset"} and found.unexplained == []


@long
def test_adapters_that_are_lost_may_have_been_moved_out_of_the_model():
    """Those of the last layer, one layer late: room for them elsewhere makes that no likelier."""
    found = found_of(with_adapters(lambda path, one: None))
    assert ids(found) == {"lora-not-applied"}
    assert found.faults[0].also_fits == ["lora-layer-offset"]


def test_room_changes_nothing_that_is_computed():
    """An adapter of noughts gives the bits of the projection, but for the sign of nought."""
    model = loaded(ADAPTED)
    roomy = with_room(model)
    assert roomy is not None and len(roomy.adapters.modules) > len(model.adapters.modules)
    np.testing.assert_array_equal(roomy.forward(TOKENS), model.forward(TOKENS))


@pytest.mark.parametrize("name", ["peft_rslora", "mlx_dora"])
def test_there_is_no_room_where_every_layer_is_adapted_nor_for_lengths_of_rows(name):
    """By hand."""
    assert with_room(loaded(f"adapters/{name}")) is None


def test_there_is_no_room_for_the_adapters_of_experts():
    """By hand: those and the router's of the last layer have none in the other, which is dense."""
    model = loaded("adapters/mlx_experts")
    roomy = with_room(model)
    assert roomy is not None
    assert roomy.adapters.modules.keys() - model.adapters.modules.keys() == {
        f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"
    }
