"""Columns that a kernel leaves out: they fill no whole tile, or are the last."""

from __future__ import annotations

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph


def shortened(multiple: int) -> Rewrite:
    """Leave the columns out that are no whole tile."""

    @rewrite("linear")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        whole = graph.input_shape(call, 0)[-1] // multiple * multiple
        if not 0 < whole < graph.input_shape(call, 0)[-1]:
            return None
        return call.with_changed(
            0, lambda ops, x: np.where(np.arange(x.shape[-1]) < whole, x, 0 * x)
        )

    return rewritten


@rewrite(("linear", "embedding"))
def without_last_group(call: Call, graph: Graph) -> Call | None:
    """Leave the columns out that the last scale of each row is for."""
    stored = graph.stored.get(call.tensor(1) or "")
    size = stored.group_size if stored is not None else None
    if stored is None or size is None or size >= stored.shape[-1]:
        return None

    def cut(ops, x):
        return np.where(np.arange(x.shape[-1]) < x.shape[-1] - size, x, 0 * x)

    return call.followed(cut) if call.op == "embedding" else call.with_changed(0, cut)
