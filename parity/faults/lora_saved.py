"""Whole tensors that an adapter brings, and that a port does not take."""

from __future__ import annotations

from lockstep.parity.faults.loading import EMBEDDINGS
from lockstep.parity.faults.tensors import root_of
from lockstep.parity.graph import Call, Constant, Graph, Ref, Tensor, rerooted

HEAD = "lm_head.weight"


def by_the_base(call: Call, graph: Graph) -> Call | None:
    """Read the base's own tensor where an adapter brings another one."""
    new = call
    for index, ref in enumerate(call.inputs):
        own = base_of(root_of(ref), graph)
        new = new if own is None else new.with_input(index, rerooted(ref, own))
    return None if new is call else new


def base_of(ref: Ref, graph: Graph) -> Tensor | None:
    """Return what the base has in the place of a tensor that an adapter brings.

    A tied head has none of its own, and its table may be brought under its name.
    """
    if not isinstance(ref, Constant) or ref.name is None:
        return None
    names = EMBEDDINGS if ref.name == HEAD and HEAD not in graph.stored else (ref.name,)
    return next((Tensor(name) for name in names if name in graph.stored), None)
