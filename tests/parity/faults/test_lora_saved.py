"""Whole tensors of an adapter that a port leaves aside: by hand, and by law on what PEFT saved."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults.lora_saved import base_of, by_the_base
from lockstep.parity.graph import Constant, Evaluator, Graph, Tensor, record
from lockstep.parity.noise import ways
from lockstep.reference import ops
from tests.parity.explaining.ports import dumped, ids, is_of
from tests.parity.faults.planted import FLOAT32, loaded

SAVED = "adapters/peft_saved"  # a head, every norm, and a table that the base has too
ID = "lora-saved-modules-ignored"
TOKENS = np.arange(1, 15)[None]


def without_saved(names):
    """Return a model that leaves whole tensors of some names to the base."""
    model = loaded(SAVED)
    kept = {name: one for name, one in model.adapters.weights.items() if not names(name)}
    model.adapters = replace(model.adapters, weights=kept)
    return model


def run_of(graph, model, way=ops):
    return Evaluator(graph, way, FLOAT32, {}, Tensors(model.checkpoint))


def port(names, level):
    model = without_saved(names)
    graph = record(model, TOKENS)
    run = run_of(graph, model, ways(FLOAT32)[1][0])
    return dumped({tap: run.target(n) for tap, n in graph.taps.items() if is_of(level, tap)})


def test_the_bases_own_are_read_to_the_bit():
    """By law: a model without the whole tensors computes the same."""
    model, bare = loaded(SAVED), without_saved(lambda name: True)
    graph, other = record(model, TOKENS), record(bare, TOKENS)
    found = ((call.number, by_the_base(call, graph)) for call in graph.calls)
    changed = {number: call for number, call in found if call is not None}
    assert len(changed) == len(model.adapters.weights)
    right = run_of(other, bare)
    for tap, number in graph.taps.items():
        expected = right.target(other.taps[tap])
        np.testing.assert_array_equal(run_of(graph, model).target(number, changed), expected)


@pytest.mark.parametrize(
    ("name", "stored", "own"),
    [
        ("model.norm.weight", ["model.norm.weight"], "model.norm.weight"),
        ("lm_head.weight", ["lm_head.weight", "model.embed_tokens.weight"], "lm_head.weight"),
        ("lm_head.weight", ["model.embed_tokens.weight"], "model.embed_tokens.weight"),
        ("model.layers.0.mlp.up_proj.a", ["model.norm.weight"], None),
        (None, ["model.norm.weight"], None),
    ],
)
def test_what_the_base_has_by_hand(name, stored, own):
    """A tied head is the base's table; a factor of an adapter stands for nothing."""
    graph = Graph((), (), (), SimpleNamespace(), stored=dict.fromkeys(stored))
    found = base_of(Constant(np.ones(2), name=name), graph)
    assert found == (None if own is None else Tensor(own))


@pytest.mark.parametrize(
    ("names", "level", "taps"),
    [
        (lambda name: "norm" in name, "modules", 9),
        (lambda name: "lm_head" in name, "logits", 1),
        (lambda name: True, "layers", 4),
    ],
)
def test_they_are_named(names, level, taps):
    """By law, of ports that never read them."""
    found = explain(loaded(SAVED), port(names, level), tokens=TOKENS[0].tolist())
    assert ids(found) == {ID} and not found.unexplained
    assert len(found.faults[0].taps) == taps
