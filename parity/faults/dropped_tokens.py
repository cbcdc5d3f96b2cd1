"""Experts that are not run for all who chose them: the last one, or one of too many tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.number import Number
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph
from lockstep.parity.graph.call import EXPERTS

ROUTED = 1  # where the weights (B, L, E) stand in the inputs of the experts
FACTORS = (1.0, 1.25, 1.5, 2.0)  # by which a capacity is larger than what an even share would be


def without_last(ops: Any, routing: np.ndarray) -> np.ndarray:
    return np.where(np.arange(routing.shape[-1]) < routing.shape[-1] - 1, routing, 0)


@rewrite(EXPERTS)
def last_never_run(call: Call, graph: Graph) -> Call:
    return call.with_changed(ROUTED, without_last)


def first_come(most: int) -> Rewrite:
    """Let each expert work for the first tokens that chose it, and for no others."""

    def served(ops: Any, routing: np.ndarray) -> np.ndarray:
        rows = routing.reshape(-1, routing.shape[-1])
        in_line = np.cumsum(rows != 0, axis=0).reshape(routing.shape)
        return np.where(in_line <= most, routing, 0)

    return rewrite(EXPERTS)(lambda call, graph: call.with_changed(ROUTED, served))


def capacity() -> Number:
    """Return how many tokens an expert has room for, where it should have room for all."""

    def right(call: Call, graph: Graph) -> float | None:
        return math.inf if call.op in EXPERTS and not graph.steps else None

    def becomes(most: float) -> Rewrite:
        limited = first_come(int(most)) if math.isfinite(most) else None
        return lambda call, graph: (
            None if limited is None or right(call, graph) is None else limited(call, graph)
        )

    return Number("{} tokens an expert", right, becomes, among=usual, for_none="for all")


def usual(call: Call, graph: Graph) -> list[float]:
    """Return an even share and what is somewhat more, and powers of two: of which some is lost."""
    batch, length, experts = graph.input_shape(call, ROUTED)
    even = batch * length * call.options["per_token"] / experts
    shares = {change(even * factor) for factor in FACTORS for change in (math.floor, math.ceil)}
    powers = {2**power for power in range(2, 13)}
    return [one for one in sorted(shares | powers) if 0 < one < batch * length]


FAULTS = (
    Fault(
        id="moe-expert-never-run",
        wrong="the loop over experts ends before the last one",
        right="each of all experts is run for the tokens that chose it",
        symptom="a little worse, for the tokens of one expert alone",
        where="the experts' output",
        fix="count the loop over experts: from 0, to the last one",
        variants={"the last of all": last_never_run},
    ),
    Fault(
        id="moe-capacity-limited",
        wrong="an expert says nothing of tokens beyond the first n that chose it",
        right="it says something of all of them",
        symptom="the end of a long prompt is understood worse; a single token is right",
        where="the experts' output",
        fix="drop no tokens: a capacity is for training",
        variants={},
    ),
)
