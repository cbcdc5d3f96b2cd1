"""What goes wrong with a mixture of experts."""

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.rewrites import instead, option, skipped


def lowest(ops, logits, *, per_token, normalize):
    """Choose the least likely experts, with the weights that they have."""
    import numpy as np

    wide = logits.astype(np.float64)
    probs = np.exp(wide - wide.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    worst = np.argsort(probs, axis=-1, kind="stable")[..., :per_token]
    out = np.zeros_like(probs)
    chosen = np.take_along_axis(probs, worst, axis=-1)
    if normalize:
        chosen = chosen / chosen.sum(axis=-1, keepdims=True)
    np.put_along_axis(out, worst, chosen, axis=-1)
    return out.astype(logits.dtype)


FAULTS = (
    Fault(
        id="moe-renorm-missing",
        wrong="w = p",
        right="w = p / sum of the chosen p",
        symptom="the experts count too little",
        where="the experts' output",
        fix="divide the chosen weights by their sum (norm_topk_prob)",
        variants={"": option("top_k_routing", "normalize", lambda right: False)},
    ),
    Fault(
        id="moe-selects-lowest",
        wrong="the k least likely experts",
        right="the k most likely experts",
        symptom="garbage",
        where="the experts' output",
        fix="take the largest router scores: check the slice after argpartition",
        variants={"": instead("top_k_routing", lowest)},
    ),
    Fault(
        id="layer-scalar-missing",
        wrong="h",
        right="h * layer_scalar",
        symptom="the stream grows wrongly from layer to layer",
        where="the layer's output",
        fix="multiply each layer's output by its layer_scalar",
        variants={"": skipped("gain", "")},
    ),
    Fault(
        id="moe-per-expert-scale-missing",
        wrong="w",
        right="w * per_expert_scale",
        symptom="experts count wrongly",
        where="the experts' output",
        fix="multiply each chosen weight by per_expert_scale of its expert, after normalising",
        variants={"": skipped("gain", r"router\.routing")},
    ),
)
