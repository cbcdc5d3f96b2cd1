"""In which order the matrices of experts are stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph
from lockstep.parity.graph.call import EXPERTS
from lockstep.reference.checkpoint.stack import Stack

GATES, UPS, DOWNS = 2, 3, 4  # where the stacks stand in the inputs of the experts


def stacked(order_of: Callable[[range], Sequence[int]], *stacks: int) -> Rewrite:
    """Stack experts, or some of their matrices, in another order: which one stands where."""

    @rewrite(EXPERTS)
    def rewritten(call: Call, graph: Graph) -> Call | None:
        experts = range(graph.input_shape(call, 1)[-1])
        order = order_of(experts)
        if [*order] == [*experts]:
            return None

        def reordered(ops: Any, stack: Any) -> Stack:
            return Stack(stack.shape, lambda expert: stack[order[expert]])

        for index in stacks or (GATES, UPS, DOWNS):
            call = call.with_changed(index, reordered)
        return call

    return rewritten


def moved_on(by: int) -> Callable[[range], Sequence[int]]:
    return lambda experts: [(one + by) % len(experts) for one in experts]


ORDERS: dict[str, Callable[[range], Sequence[int]]] = {
    "": lambda experts: sorted(experts, key=str),
    "from the last to the first": lambda experts: experts[::-1],
    "each the next one": moved_on(1),
    "each the one before": moved_on(-1),
}
