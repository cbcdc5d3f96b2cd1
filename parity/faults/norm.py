"""What goes wrong with normalisation."""

import numpy as np

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.rewrites import NORMS, instead, option, skipped

QK = (r"self_attn\.[qk]_norm",)
POST = (r"post_attention_layernorm", r"post_feedforward_layernorm.*", "post_per_layer_input_norm")


def outside_the_root(ops, x, gain, *, eps):
    """x / (sqrt(mean(x^2)) + eps) * gain, by scaling what the right norm gives."""
    power = np.mean(np.square(x.astype(np.float64)), axis=-1, keepdims=True)
    ratio = np.sqrt(power + eps) / (np.sqrt(power) + eps)
    return (ops.rms_norm(x, gain, eps=eps).astype(np.float64) * ratio).astype(x.dtype)


def twice(ops, x, gain, *, eps):
    return ops.rms_norm(ops.rms_norm(x, gain, eps=eps), gain, eps=eps)


FAULTS = (
    Fault(
        id="rms-eps-wrong",
        wrong="x / sqrt(mean(x^2) + eps'), eps' not of the config",
        right="x / sqrt(mean(x^2) + rms_norm_eps)",
        symptom="no symptom to see: perplexity drifts, rows of small activations are off most",
        where="input_layernorm of the first layer",
        fix="take the epsilon from the config",
        evidence=("huggingface/transformers#38025", "ggml-org/llama.cpp#23815"),
        variants={
            f"eps = {eps:g}": option(NORMS, "eps", lambda right, eps=eps: eps)
            for eps in (1e-5, 1e-6, 1e-8, 0.0, 1e-12)
        },
    ),
    Fault(
        id="norm-eps-outside-sqrt",
        wrong="x / (sqrt(mean(x^2)) + eps)",
        right="x / sqrt(mean(x^2) + eps)",
        symptom="none to see",
        where="input_layernorm",
        fix="add the epsilon to the mean square, under the root",
        evidence=("EleutherAI/gpt-neox#1342", "NVIDIA/TransformerEngine#364"),
        variants={"": instead("rms_norm", outside_the_root)},
    ),
    Fault(
        id="qk-norm-missing",
        wrong="scores = q k^T",
        right="scores = norm(q) norm(k)^T",
        symptom="garbage, or text that falls apart with length",
        where="self_attn.q_norm",
        fix="normalise each head's query and key before rope",
        variants={"": skipped(NORMS, *QK)},
    ),
    Fault(
        id="norm-applied-twice",
        wrong="norm(norm(x))",
        right="norm(x)",
        symptom="the gain counts twice",
        where="the norm's own output",
        fix="call the norm once",
        evidence=("ggml-org/llama.cpp#1925",),
        variants={"": instead("rms_norm", twice)},
    ),
    Fault(
        id="sandwich-norm-missing",
        wrong="x + attn(norm(x))",
        right="x + post_norm(attn(norm(x)))",
        symptom="garbage, or a stream that grows from layer to layer",
        where="residual",
        fix="normalise what attention and the MLP return before adding it",
        variants={"": skipped(NORMS, *POST)},
    ),
)
