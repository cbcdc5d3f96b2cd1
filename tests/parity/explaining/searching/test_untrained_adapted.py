"""Random numbers in a projection that has an adapter beside it are named with its bugs. By law."""

from copy import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from lockstep.parity.explain import explain
from lockstep.parity.explaining.tensors import Tensors
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Evaluator, record
from lockstep.parity.noise import ways
from tests.parity.explaining.ports import dumped, ids, is_of, rewrite_of
from tests.parity.explaining.searching.test_untrained_beside import fresh
from tests.parity.faults.planted import loaded

DROPPED, ALONE = "strict-false-drops-tensors", "head-merge-without-transpose"
EVERYWHERE = "lora-scale-divided-again"
KNOWN = [one for one in catalogue() if one.id in (DROPPED, ALONE, EVERYWHERE)]
TOKENS = (np.arange(70) * 7 % 40 + 1)[None]
FLOAT32 = np.dtype(np.float32)


@cache
def adapted():
    """Return a model with adapters of the same numbers on both of its layers."""
    model = copy(loaded("adapters/mlx_lora"))
    last = model.adapters.modules
    first = {path.replace(".layers.1.", ".layers.0."): one for path, one in last.items()}
    model.adapters = replace(model.adapters, modules={**last, **first})
    return model


def in_the_last_layer(rewrite):
    return lambda call, graph: rewrite(call, graph) if call.layer == 1 else None


@pytest.mark.parametrize("more", [[], [ALONE]])
def test_they_are_named_beside_an_adapter_and_its_bugs(more):
    model = adapted()
    graph = record(model, TOKENS)
    calls = {call.number: call for call in graph.calls}
    for rewrite in (
        rewrite_of(EVERYWHERE), fresh, *(in_the_last_layer(rewrite_of(one)) for one in more)
    ):  # fmt: skip
        calls = {n: rewrite(call, graph) or call for n, call in calls.items()}
    wrong = {n: call for n, call in calls.items() if call is not graph.calls[n]}
    run = Evaluator(graph, ways(FLOAT32)[1][0], FLOAT32, {}, Tensors(model.checkpoint))
    taps = {tap: run.target(n, wrong) for tap, n in graph.taps.items() if is_of("modules", tap)}
    found = explain(model, dumped(taps), tokens=TOKENS[0].tolist(), faults=KNOWN)
    assert ids(found) == {EVERYWHERE, DROPPED, *more} and not found.unexplained
    layers = {one.id: one.layers for one in found.faults}
    assert layers[DROPPED] == [1] and layers[EVERYWHERE] == [0, 1]
