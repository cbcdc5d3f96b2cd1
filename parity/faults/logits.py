"""What goes wrong with the logits themselves."""

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.rewrites import skipped

FAULTS = (
    Fault(
        id="final-softcap-missing",
        wrong="logits = l",
        right="logits = c tanh(l / c)",
        symptom="greedy text is unchanged, but probabilities are too sharp",
        where="logits",
        fix="pass the logits through c * tanh(l / c), with c = final_logit_softcapping",
        evidence=("ggml-org/llama.cpp#8197", "ml-explore/mlx-lm@9020453e"),
        variants={"": skipped("softcap")},
    ),
)
