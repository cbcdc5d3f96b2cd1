"""A layer's number in the wrong place: what it multiplies, where it should take the whole layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import either, rewrite, skipped
from lockstep.parity.faults.streams import into_layer
from lockstep.parity.graph import Call, Graph, Ref

SCALED = ""  # the place of a layer's own result
STREAM, BRANCH = 0, 1  # the sides of a sum

left_out = skipped("gain", SCALED)


def one_side(side: int) -> Rewrite:
    """Multiply one side of the last sum alone."""

    @rewrite("gain", SCALED)
    def change(call: Call, graph: Graph) -> Call:
        sides = graph.source(call, 0).inputs

        def wrong(ops: Any, own: Any, weights: Any, other: Any) -> Any:
            scaled = ops.gain(own, weights)
            return ops.add(*((scaled, other) if side == STREAM else (other, scaled)))

        inputs = (sides[side], call.inputs[1], sides[1 - side])
        return replace(call.replaced(wrong), inputs=inputs)

    return change


def elsewhere(change: Callable[[Call, Ref, Graph], Call | None]) -> Rewrite:
    """Multiply somewhere else in the layer, not at its end: `change(call, number, graph)`."""

    def rewritten(call: Call, graph: Graph) -> Call | None:
        last = next((one for one in graph.at(SCALED, call.layer) if one.op == "gain"), None)
        return None if last is None else change(call, last.inputs[1], graph)

    return either(left_out, rewritten)


def going_in(call: Call, number: Ref, graph: Graph) -> Call | None:
    """Multiply what goes into the layer, for all that read it."""
    new, stream = call, into_layer(call, graph)
    for index, ref in enumerate(graph.calls[call.number].inputs):
        if ref == stream:
            new = new.with_changed(index, times, number)
    return None if new is call else new


def said_by_attention(call: Call, number: Ref, graph: Graph) -> Call | None:
    """Multiply what attention adds."""
    here = (call.op, call.place) == ("add", "residual")
    return call.with_changed(BRANCH, times, number) if here else None


def times(ops: Any, x: Any, number: Any) -> Any:
    return ops.gain(x, number)


@rewrite("gain", SCALED)
def one_more(call: Call, graph: Graph) -> Call:
    """Multiply by 1 + the number, as some norms take their gains."""
    return call.with_changed(1, lambda ops, number: number.astype(np.float32) + np.float32(1))


@rewrite("gain", SCALED)
def taken_twice(call: Call, graph: Graph) -> Call:
    return call.with_changed(0, times, call.inputs[1])
