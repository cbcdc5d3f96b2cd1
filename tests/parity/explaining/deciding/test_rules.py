"""A rule for all layers, where adapters were lost and the catalogue does not know that. By law."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.explain import explain
from lockstep.parity.explaining import diagnosing
from lockstep.parity.explaining.searching.untrained import Random, of_random_numbers
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Evaluator, record
from lockstep.parity.noise import ways
from tests.parity.explaining.ports import dumped, ids, is_of
from tests.parity.faults.planted import loaded

LOST, MOVED = "lora-not-applied", "lora-layer-offset"
TOKENS = np.arange(1, 15)[None]
FLOAT32 = np.dtype(np.float32)


@cache
def adapted():
    return loaded("adapters/peft_rslora")


def taps_of(model, rewrite=None):
    graph = record(model, TOKENS)
    calls = {call.number: rewrite(call, graph) for call in graph.calls if rewrite}
    wrong = {number: call for number, call in calls.items() if call is not None}
    run = Evaluator(graph, ways(FLOAT32)[1][0], FLOAT32, {}, Tensors(model.checkpoint))
    return {tap: run.target(n, wrong) for tap, n in graph.taps.items() if is_of("modules", tap)}


def found_in(taps, *without):
    faults = [one for one in catalogue() if one.id not in without]
    return explain(adapted(), dumped(taps), tokens=TOKENS[0].tolist(), faults=faults)


def test_adapters_that_are_gone_are_not_said_to_be_moved():
    """Those of the first and of the last layer are moved out of the model, each another way."""
    taps = taps_of(reference.load(adapted().checkpoint.path))
    assert ids(found_in(taps)) == {LOST}
    found = found_in(taps, LOST)
    assert found.faults == [] and found.unexplained


@pytest.mark.parametrize("variant", ["one layer late", "one layer early"])
def test_moved_adapters_are_named(variant):
    (fault,) = (one for one in catalogue() if one.id == MOVED)
    found = found_in(taps_of(adapted(), fault.variants[variant]), LOST)
    assert ids(found) == {MOVED} and found.unexplained == []
    assert [one.variant for one in found.faults] == [variant]


def test_one_adapter_that_is_lost_is_not_said_to_be_moved():
    """By hand: the five others are where they should be."""
    (fault,) = (one for one in catalogue() if one.id == LOST)
    lost = next(iter(fault.variants.values()))
    first = next(call.number for call in record(adapted(), TOKENS).calls if call.op == "add_lora")
    taps = taps_of(
        adapted(), lambda call, graph: (call.number == first and lost(call, graph)) or None
    )
    found = found_in(taps)
    assert ids(found) == {LOST} and found.faults[0].also_fits == []
    found = found_in(taps, LOST)
    assert found.faults == [] and len(found.unexplained) == 1


def test_a_rule_that_was_given_up_does_not_come_back(monkeypatch):
    """By hand: pieces that it would explain were read as random numbers."""
    twice = "norm-applied-twice"
    (fault,) = (one for one in catalogue() if one.id == twice)
    wrong = fault.variants[""]
    bare = reference.load(adapted().checkpoint.path)
    taps = taps_of(
        bare, lambda call, graph: (call.place == "model.norm" and wrong(call, graph)) or None
    )
    read = [f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 1)]

    def read_wrongly(case):
        for piece in case.wrong:
            if case.tap(piece) in read:
                call = case.graph.calls[piece.target]
                yield Random(
                    piece,
                    of_random_numbers(call, case, SimpleNamespace(size=0.02), piece),
                    seen=False,
                )

    monkeypatch.setattr(diagnosing, "untrained", read_wrongly)
    assert ids(found_in(taps, LOST)) == {twice, "strict-false-drops-tensors"}
