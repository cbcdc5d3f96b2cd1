"""Any bug in some passes alone: a port may read a prompt by other code than that behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.passes import fed_with, numbered
from lockstep.parity.graph import Call, Graph

ALONE = "in steps alone"
SINGLY = "in steps of one token alone"
CHUNKED = "in chunks of several tokens alone"
Sizes = Callable[[np.ndarray], np.ndarray]  # of how many tokens a pass has, whether it is meant

MEANT: Mapping[str, Sizes] = {
    ALONE: lambda sizes: sizes > 0,
    SINGLY: lambda sizes: sizes == 1,
    CHUNKED: lambda sizes: sizes > 1,
}


def in_steps_alone(fault: Fault, which: str = ALONE) -> Fault:
    """Return a fault whose variants are in some steps alone: of those that are one call's own."""
    apart = {*fault.whole, *fault.throughout, *fault.pairs}
    variants = {
        f"{name}, {which}" if name else which: in_steps(rewrite, which)
        for name, rewrite in fault.variants.items()
        if name not in apart
    }
    return replace(fault, variants=variants, whole=(), throughout=(), pairs={}, rule="")


def tokens_of(graph: Graph, rows: int, total: int, which: str) -> np.ndarray:
    """Say which of the first rows, of `total` in all, are fed in the steps that are meant."""
    return (numbered(graph, rows) > 0) & MEANT[which](fed_with(graph, rows, total))


def in_steps(rewrite: Rewrite, which: str = ALONE) -> Rewrite:
    """Compute a call both ways, and take its tokens of some steps from the wrong one."""

    def rewritten(call: Call, graph: Graph) -> Call | None:
        axes = graph.token_axes[call.number]
        new = rewrite(call, graph) if graph.steps and axes else None
        if new is None or new is call:
            return None
        count, axis = len(call.inputs), axes[0]
        total = graph.shapes[call.number][axis]
        if not tokens_of(graph, total, total, which).any():
            return None

        def both(ops: Any, *inputs: Any, **options: Any) -> np.ndarray:
            right = call.made(ops, *inputs[:count], **options)
            held = {"dtype": options["dtype"]} if "dtype" in options else {}
            found = new.made(ops, *inputs[count:], **{**new.options, **held})
            there = tokens_of(graph, right.shape[axis], total, which)
            return np.where(there.reshape(-1, *[1] * (right.ndim - 1 - axis)), found, right)

        inputs = (*call.inputs, *new.inputs)
        return replace(call, inputs=inputs, instead=both, after=(), idle=False)

    return rewritten
