"""Graphs of a few calls, on which what a fault does can be worked out by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from lockstep.parity.faults import catalogue
from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.graph import Call, Constant, Evaluator, Graph, Value
from lockstep.reference import ops

FLOAT64 = np.dtype(np.float64)


def variant(id: str, name: str = "") -> Rewrite:
    """Return the rewrite of one variant of an entry."""
    return next(fault for fault in catalogue() if fault.id == id).variants[name]


def call(number: int, op: str, *inputs: Any, place: str = "", layer: int | None = None,
         taps: tuple[str, ...] = (), **options: Any) -> Call:  # fmt: skip
    """Return a call on arrays, or on what other calls return."""
    refs = tuple(ref if isinstance(ref, Value) else Constant(ref) for ref in inputs)
    return Call(number, op, refs, options, taps, place, layer, len(refs))


def graph_of(*calls: Call, steps: tuple[int, ...] = (), **config: Any) -> Graph:
    """Return a graph of calls whose values are as large as computing them says."""
    shapeless = Graph(calls, ((),) * len(calls), ((1,),) * len(calls), SimpleNamespace(**config))
    run = Evaluator(shapeless, ops, FLOAT64, {}, None)  # pyright: ignore[reportArgumentType]
    shapes = tuple(np.shape(run.target(one.number)) for one in calls)
    return Graph(calls, shapes, shapeless.token_axes, shapeless.config, steps=steps)


def wrong(graph: Graph, rewrite: Rewrite, *, ops: Any = ops) -> np.ndarray:
    """Return the last value of a graph, with every call rewritten that the fault changes."""
    changed = {one.number: rewrite(one, graph) for one in graph.calls}
    calls = {number: one for number, one in changed.items() if one is not None}
    assert calls, "the fault changes nothing here"
    run = Evaluator(graph, ops, FLOAT64, {}, None)  # pyright: ignore[reportArgumentType]
    return run.target(graph.calls[-1].number, calls)


def one_call(id: str, name: str, op: str, *inputs: Any, place: str = "", **options: Any) -> Any:
    """Return what one operation gives with a bug in it."""
    return wrong(graph_of(call(0, op, *inputs, place=place, **options)), variant(id, name))


def value_of(graph: Graph, number: int) -> np.ndarray:
    """Return a value of a graph as it should be."""
    run = Evaluator(graph, ops, FLOAT64, {}, None)  # pyright: ignore[reportArgumentType]
    return run.target(number)
