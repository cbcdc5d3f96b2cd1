"""What goes wrong between the two norms: one takes the mean away, the other does not."""

from __future__ import annotations

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.norms import centred, not_centred, not_centred_nor_biased
from lockstep.parity.faults.rewrites import instead
from lockstep.parity.faults.roots import about_the_mean, rooted, sample_deviation

FAULTS = (
    Fault(
        id="layernorm-for-rmsnorm",
        wrong="(x - mean(x)) / std(x) * w",
        right="x / rms(x) * w",
        symptom="text a little worse: the mean is near 0",
        where="input_layernorm",
        fix="do not take the mean away",
        evidence=("ggml-org/llama.cpp#173", "ml-explore/mlx-examples#1308"),
        variants={
            "": instead(("rms_norm", "unit_norm"), centred),
            "x / std(x) * w": rooted(about_the_mean, ("rms_norm", "unit_norm")),
            "x / (s + eps) * w, s of n - 1": rooted(sample_deviation, ("rms_norm", "unit_norm")),
        },
    ),
    Fault(
        id="rmsnorm-for-layernorm",
        wrong="x / rms(x) * w",
        right="(x - mean(x)) / std(x) * w + b",
        symptom="text worse",
        where="ln_1",
        fix="take the mean away first, and add the bias",
        evidence=("antonellof/ferrox#232",),
        variants={
            "without the bias": instead("layer_norm", not_centred_nor_biased),
            "with the bias": instead("layer_norm", not_centred),
        },
    ),
)
