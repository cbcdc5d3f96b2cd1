"""Two bugs in one call, of packed weights, blocks and adapters: they compose or conflict."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from lockstep.parity.faults import catalogue
from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.graph import Call, Conflict, Graph
from tests.parity.faults.planted import world
from tests.sampled import sampled


def on_one_call(graph: Graph) -> Iterator[tuple[Call, Rewrite, Rewrite]]:
    """Yield pairs of variants that act on one call, on one call of each kind and place."""
    rewrites = [rewrite for fault in catalogue() for rewrite in fault.variants.values()]
    for call in {(call.op, call.place): call for call in graph.calls}.values():
        here = [rewrite for rewrite in rewrites if rewrite(call, graph) is not None]
        yield from ((call, *pair) for pair in combinations(here, 2))


def with_both(call: Call, graph: Graph, one: Rewrite, other: Rewrite) -> Call | None:
    try:
        changed = one(call, graph)
        return None if changed is None else other(changed, graph)
    except Conflict:
        return None


@sampled(1, "gguf/qwen3_mixed.gguf")
@pytest.mark.parametrize(
    "name",
    ["gguf/qwen3_mixed.gguf", "models/minifloats_mixed", "llama/qwen2_yarn", "adapters/peft_dora"],
)
def test_they_compose_or_conflict(name):
    graph, run = world(name).graph, world(name).evaluator()
    values: dict[int, np.ndarray] = {}
    for call in graph.calls:
        values[call.number] = run.compute(call, values)
    composed = 0
    for call, one, other in on_one_call(graph):
        changed = with_both(call, graph, one, other)
        if changed is not None:
            with np.errstate(all="ignore"):
                found = run.compute(changed, values)
            right = values[call.number]
            assert (found.shape, found.dtype) == (right.shape, right.dtype)
            composed += 1
    assert composed > 500
