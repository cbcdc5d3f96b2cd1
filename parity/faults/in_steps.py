"""Any bug in steps alone: a port may read a prompt by other code than that behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.graph import Call, Graph

ALONE = "in steps alone"


def in_steps_alone(fault: Fault) -> Fault:
    """Return a fault whose variants are in steps alone: of those that are one call's own."""
    apart = {*fault.whole, *fault.throughout, *fault.pairs}
    variants = {
        f"{name}, {ALONE}" if name else ALONE: in_steps(rewrite)
        for name, rewrite in fault.variants.items()
        if name not in apart
    }
    return replace(fault, variants=variants, whole=(), throughout=(), pairs={}, rule="")


def in_steps(rewrite: Rewrite) -> Rewrite:
    """Compute a call both ways, and take its tokens of steps from the wrong one."""

    def rewritten(call: Call, graph: Graph) -> Call | None:
        axes = graph.token_axes[call.number]
        new = rewrite(call, graph) if graph.steps and axes else None
        if new is None or new is call:
            return None
        count, first, axis = len(call.inputs), graph.steps[0], axes[0]

        def both(ops: Any, *inputs: Any, **options: Any) -> np.ndarray:
            right = call.made(ops, *inputs[:count], **options)
            held = {"dtype": options["dtype"]} if "dtype" in options else {}
            found = new.made(ops, *inputs[count:], **{**new.options, **held})
            later = np.arange(right.shape[axis]) >= first
            return np.where(later.reshape(-1, *[1] * (right.ndim - 1 - axis)), found, right)

        inputs = (*call.inputs, *new.inputs)
        return replace(call, inputs=inputs, instead=both, after=(), idle=False)

    return rewritten
