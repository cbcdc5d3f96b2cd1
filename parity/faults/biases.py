"""Biases that are left out, added twice, or another projection's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import changed_input, either
from lockstep.parity.faults.tensors import BIAS, named, renamed
from lockstep.parity.graph import Call, Constant, Graph

AS_LONG = (("k_proj", "v_proj"), ("gate_proj", "up_proj"))


def biased(change: Callable[[str, Call, Graph], Call | None]) -> Rewrite:
    """Change what is done with a bias: `change(its module's name, call, graph)`."""

    def rewritten(call: Call, graph: Graph) -> Call | None:
        if call.op not in BIAS:
            return None
        name = named(call.inputs[BIAS[call.op]])
        return None if name is None else change(name.removesuffix(".bias"), call, graph)

    return rewritten


def without_bias(chosen: Callable[[str], bool]) -> Rewrite:
    """Leave the bias of some projections out."""

    def change(name: str, call: Call, graph: Graph) -> Call | None:
        left_out = chosen(name.rpartition(".")[2])
        return call.with_input(BIAS[call.op], Constant(None)) if left_out else None

    return biased(change)


def without_fused_bias(part: int) -> Rewrite:
    """Leave one third of the fused bias of GPT-2 out."""

    def change(ops: Any, bias: Any) -> Any:
        third = len(bias) // 3
        return np.where(np.arange(len(bias)) // third == part, np.zeros_like(bias), bias)

    return changed_input("linear", 2, change, r"attn\.c_attn")


def twice(name: str, call: Call, graph: Graph) -> Call:
    """Double it, which is exact."""
    return call.with_changed(BIAS[call.op], lambda ops, bias: bias + bias)


def of_other(own: str, other: str) -> Rewrite:
    """Add another projection's bias, if it is as long."""

    def change(name: str, call: Call, graph: Graph) -> Call | None:
        if not name.endswith(own):
            return None
        theirs = f"{name.removesuffix(own)}{other}.bias"
        found, right = (graph.stored.get(one) for one in (theirs, f"{name}.bias"))
        if found is None or right is None or found.shape != right.shape:
            return None
        index = BIAS[call.op]
        return call.with_input(index, renamed(call.inputs[index], theirs))

    return biased(change)


OF_OTHERS = {
    **{
        f"{own} with that of {other}": of_other(own, other)
        for pair in AS_LONG
        for own, other in permutations(pair)
    },
    **{
        f"{one} and {other} exchanged": either(of_other(one, other), of_other(other, one))
        for one, other in AS_LONG
    },
}
