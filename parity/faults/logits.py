"""What goes wrong with the logits themselves."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Fault, Rewrite
from lockstep.parity.faults.rewrites import either, instead, rewrite, skipped
from lockstep.parity.faults.routers import softmax
from lockstep.parity.graph import Call, Graph
from lockstep.reference.precision import accumulator, rounded


def twice(ops, x, *, cap):
    return ops.softcap(ops.softcap(x, cap=cap), cap=cap)


def clamped(ops, x, *, cap):
    """max(-cap, min(x, cap))"""
    return np.clip(x, x.dtype.type(-cap), x.dtype.type(cap))


def not_divided(ops, x, *, cap):
    """cap * tanh(x)"""
    work = accumulator(x.dtype)
    return rounded(work.type(cap) * np.tanh(x.astype(work)), x.dtype)


def not_multiplied(ops, x, *, cap):
    """tanh(x / cap)"""
    work = accumulator(x.dtype)
    return rounded(np.tanh(x.astype(work) / work.type(cap)), x.dtype)


def log_probabilities(ops, logits):
    """l - log sum e^l"""
    wide = logits.astype(accumulator(logits.dtype))
    below = wide - wide.max(axis=-1, keepdims=True)
    return rounded(below - np.log(np.exp(below).sum(axis=-1, keepdims=True)), logits.dtype)


def probabilities(ops, logits):
    """e^l / sum e^l"""
    return rounded(softmax(logits.astype(accumulator(logits.dtype))), logits.dtype)


def handed_out(change: Callable[[Any, np.ndarray], np.ndarray]) -> Rewrite:
    """Make something else of the logits, behind a softcap if there is one."""
    return lambda call, graph: call.followed(change) if "logits" in call.taps else None


def capped(op: str, place: str) -> Rewrite:
    """Cap what goes into a call, and not the logits."""

    def change(call: Call, graph: Graph) -> Call | None:
        last = next((one for one in graph.calls if one.op == "softcap"), None)
        if last is None:
            return None
        cap = last.options["cap"]
        return call.with_changed(0, lambda ops, x: ops.softcap(x, cap=cap))

    return either(skipped("softcap", "logits"), rewrite(op, place)(change))


FAULTS = (
    Fault(
        id="final-softcap-missing",
        wrong="logits = l, or what has another shape",
        right="logits = c tanh(l / c), c = final_logit_softcapping",
        symptom="greedy text is unchanged, but probabilities are too sharp",
        where="logits",
        fix="pass the logits through c * tanh(l / c), with c = final_logit_softcapping",
        evidence=("ggml-org/llama.cpp#8197", "ml-explore/mlx-lm@9020453e"),
        variants={
            "": skipped("softcap", "logits"),
            "twice": instead("softcap", twice, "logits"),
            "cut off at c and -c": instead("softcap", clamped, "logits"),
            "not divided": instead("softcap", not_divided, "logits"),
            "not multiplied": instead("softcap", not_multiplied, "logits"),
            "on what goes into the head": capped("linear", "lm_head"),
            "on what goes into the last norm": capped("rms_norm", r"model\.norm"),
        },
        whole=("on what goes into the head", "on what goes into the last norm"),
    ),
    Fault(
        id="logits-as-probabilities",
        wrong="log-probabilities or probabilities under the name of the logits",
        right="what the head says, before any softmax",
        symptom="none: the order of tokens is the same",
        where="logits",
        fix="dump what goes into the softmax, to compare it",
        convention=True,
        variants={
            "log-probabilities": handed_out(log_probabilities),
            "probabilities": handed_out(probabilities),
        },
    ),
)
