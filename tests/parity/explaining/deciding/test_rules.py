"""A rule for all layers, where adapters were lost and the catalogue does not know that. By law."""

from functools import cache

import numpy as np
import pytest

from lockstep import reference
from lockstep.parity.explain import explain
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
