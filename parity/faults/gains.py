"""Norms of heads that take each other's gains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.norms import borrowed, exchanged
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph

QUERIES, KEYS, VALUES = (f"self_attn.{name}_norm" for name in "qkv")


@rewrite("unit_norm", VALUES)
def with_gain_of_keys(call: Call, graph: Graph) -> Call | None:
    """Normalise values as keys are, by the same gain."""
    norm = next((one for one in graph.at(KEYS, call.layer) if one.op == "rms_norm"), None)
    if norm is None:
        return None

    def wrong(ops: Any, x: Any, gain: Any, *, eps: float) -> Any:
        return ops.gain(ops.unit_norm(x, eps=eps), gain)

    return replace(call.replaced(wrong), inputs=(*call.inputs, norm.inputs[1]))


FAULTS = (
    Fault(
        id="qk-norm-gains-mixed",
        wrong="queries, keys or values times the gain of another norm of heads",
        right="queries times the gain of q_norm, keys times that of k_norm, values times none",
        symptom="attention looks at the wrong things, though no score is too large",
        where="self_attn.q_norm, self_attn.k_norm or self_attn.v_norm",
        fix="see which tensor each norm of heads is handed; that of values has none",
        variants={
            "q_norm and k_norm exchanged": exchanged(QUERIES, KEYS),
            "keys by that of q_norm": borrowed(KEYS, QUERIES),
            "queries by that of k_norm": borrowed(QUERIES, KEYS),
            "values by that of k_norm": with_gain_of_keys,
        },
        whole=("q_norm and k_norm exchanged",),
    ),
)
