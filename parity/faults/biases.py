"""Biases that are left out, added twice, behind the turn of the heads, or another projection's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.rewrites import changed_input, either, rewrite
from lockstep.parity.faults.tensors import BIAS, named, renamed
from lockstep.parity.faults.values import projection_of
from lockstep.parity.graph import Call, Conflict, Constant, Graph
from lockstep.parity.graph.call import nested
from lockstep.parity.graph.stretched import rope

QKV = ("q_proj", "k_proj", "v_proj", "c_attn")
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


@dataclass(frozen=True)
class TurnedAndBiased:
    """A rope with a bias behind it; what else is wrong with the rope stays in front of that.

    What it turns may `have` the bias by then, which is taken off.
    """

    has: bool
    turn: Callable[..., Any] = rope

    def __call__(
        self, ops: Any, x: Any, positions: Any, frequencies: Any, bias: Any, **options: Any
    ) -> Any:
        width, heads = x.shape[-1], bias.size // x.shape[-1]
        shape = (heads, 1, width) if x.shape[1] == heads else (heads, width)  # over heads, tokens
        own = np.broadcast_to(bias.reshape(shape), x.shape).astype(x.dtype)
        bare = x - own if self.has else x
        return ops.add(self.turn(ops, bare, positions, frequencies, **options), own)

    def around(self, instead: Callable[..., Any]) -> TurnedAndBiased:
        return replace(self, turn=nested("rope", self.turn, instead))


def behind_the_turn(*, has: bool) -> Rewrite:
    @rewrite("rope")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        bias = projection_of(call.inputs[0], graph).inputs[BIAS["linear"]]
        if named(bias) is None:
            return None
        if len(call.inputs) != call.arity:  # it takes something besides by now
            raise Conflict(call.place)
        turned = call.replaced(TurnedAndBiased(has))
        return replace(turned, inputs=(*turned.inputs, bias))

    return rewritten


UNBIASED = without_bias(lambda module: module.endswith(("q_proj", "k_proj")))
BEHIND = {
    "": either(UNBIASED, behind_the_turn(has=False)),
    "the projection dumped with it": behind_the_turn(has=True),
}

FAULTS = (
    Fault(
        id="qkv-bias-dropped",
        wrong="q, k, v = W x",
        right="q, k, v = W x + b",
        symptom="degraded text, perplexity above that of guessing",
        where="self_attn.q_proj",
        fix="load and add the biases of the projections that have them",
        evidence=("mlc-ai/mlc-llm#3494", "paiml/aprender#1606", "paiml/realizar#159"),
        variants={
            "": without_bias(lambda module: module in QKV),
            **{
                f"of {name}": without_fused_bias(part)
                for part, name in enumerate(("queries", "keys", "values"))
            },
        },
    ),
    Fault(
        id="o-proj-mlp-bias-dropped",
        wrong="W x",
        right="W x + b, behind attention and in the MLP",
        symptom="degraded text",
        where="self_attn.o_proj, mlp",
        fix="load and add the biases of the projections that have them",
        evidence=("mlc-ai/mlc-llm#3494",),
        variants={"": without_bias(lambda module: module not in QKV)},
    ),
    Fault(
        id="bias-added-twice",
        wrong="W x + 2 b",
        right="W x + b",
        symptom="degraded text",
        where="self_attn.q_proj",
        fix="add the bias in the product, or behind it, not in both",
        variants={"": biased(twice)},
    ),
    Fault(
        id="bias-of-other-projection",
        wrong="y = W x + the bias of another projection",
        right="y = W x + its own bias",
        symptom="degraded text",
        where="self_attn.k_proj",
        fix="load each bias with the weight of its own module",
        variants=OF_OTHERS,
    ),
    Fault(
        id="bias-behind-turn",
        wrong="rope(W x) + b",
        right="rope(W x + b)",
        symptom="worse with every position; position 0 is exact",
        where="self_attn.q_rope",
        fix="add the biases of queries and keys before they are turned",
        variants=BEHIND,
        whole=("",),
    ),
)
