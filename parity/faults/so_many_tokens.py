"""What is done by so many tokens: positions that begin anew, a rest that is not read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.mask import MASK, seeing, sight_of
from lockstep.parity.faults.number import Number, bound_of_none
from lockstep.parity.faults.passes import begins, fed_with
from lockstep.parity.faults.rewrites import changed_input, only, rewrite
from lockstep.parity.faults.turns import POSITIONS
from lockstep.parity.graph import Call, Graph

SIZES = [2**power for power in range(1, 13)]  # of blocks, in tokens
MOST_FIRST = 8  # tokens that are kept in sight


def begun_anew() -> Number:
    """Return after how many tokens positions begin anew."""

    def shorter(call: Call, graph: Graph) -> Sequence[int]:
        return [one for one in SIZES if one < graph.shapes[call.number][-2]]

    def becomes(size: float) -> Rewrite:
        anew = changed_input("rope", POSITIONS, lambda ops, positions: positions % int(size))
        return only(lambda call, graph: math.isfinite(size), anew)

    form = "positions begin anew every {} tokens"
    return Number(form, bound_of_none("rope"), becomes, among=shorter, is_quick=True, is_alone=True)


def keys_of(call: Call, graph: Graph) -> np.ndarray:
    """Return how many keys there are in the pass of each row."""
    rows = graph.shapes[call.number][-1]
    return begins(graph, rows) + fed_with(graph, rows, rows)


def rest_unread() -> Number:
    """Return the size of the blocks of keys of which an incomplete last one is not read."""

    def incomplete(call: Call, graph: Graph) -> Sequence[int]:
        keys = keys_of(call, graph)
        return [one for one in SIZES if one < len(keys) and (keys % one).any()]

    def becomes(size: float) -> Rewrite:
        @rewrite("softmax")
        def cut(call: Call, graph: Graph) -> Call | None:
            if math.isinf(size):
                return None
            ends = keys_of(call, graph) // int(size) * int(size)

            def read(ops: Any, mask: Any) -> Any:
                return mask & (np.arange(mask.shape[-1]) < ends[: mask.shape[-2], None])

            return call.with_changed(MASK, read)

        return cut

    form = "keys behind the last whole block of {}"
    return Number(
        form, bound_of_none("softmax"), becomes, among=incomplete, is_quick=True, is_alone=True
    )


def first_in_sight() -> Number:
    """Return how many first tokens are seen beside a window."""

    def right(call: Call, graph: Graph) -> float | None:
        sight = sight_of(call, graph) if call.op == "softmax" else None
        return None if sight is None or sight.window is None else float(sight.first)

    def few(call: Call, graph: Graph) -> Sequence[int]:
        return range(1, min(MOST_FIRST + 1, graph.shapes[call.number][-1]))

    def becomes(count: float) -> Rewrite:
        return only(lambda call, graph: right(call, graph) is not None, seeing(first=int(count)))

    return Number("the window, and the first {} tokens", right, becomes, among=few, is_alone=True)
