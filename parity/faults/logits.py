"""What goes wrong with the logits themselves."""

import numpy as np

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.rewrites import instead, skipped
from lockstep.reference.precision import accumulator, rounded


def twice(ops, x, *, cap):
    return ops.softcap(ops.softcap(x, cap=cap), cap=cap)


def not_divided(ops, x, *, cap):
    """cap * tanh(x)"""
    work = accumulator(x.dtype)
    return rounded(work.type(cap) * np.tanh(x.astype(work)), x.dtype)


def not_multiplied(ops, x, *, cap):
    """tanh(x / cap)"""
    work = accumulator(x.dtype)
    return rounded(np.tanh(x.astype(work) / work.type(cap)), x.dtype)


FAULTS = (
    Fault(
        id="final-softcap-missing",
        wrong="logits = l",
        right="logits = c tanh(l / c), c = final_logit_softcapping",
        symptom="greedy text is unchanged, but probabilities are too sharp",
        where="logits",
        fix="pass the logits through c * tanh(l / c), with c = final_logit_softcapping",
        evidence=("ggml-org/llama.cpp#8197", "ml-explore/mlx-lm@9020453e"),
        variants={
            "": skipped("softcap", "logits"),
            "twice": instead("softcap", twice, "logits"),
            "not divided": instead("softcap", not_divided, "logits"),
            "not multiplied": instead("softcap", not_multiplied, "logits"),
        },
    ),
)
