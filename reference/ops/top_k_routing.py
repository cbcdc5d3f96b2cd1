import numpy as np

from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Routing


def top_k_routing(logits: Routing, *, per_token: int, normalize: bool) -> Routing:
    """Choose the experts of each token, and how much each of them counts.

        probs = softmax(logits)                              (over all X experts)
        out[x] = probs[x] if x is among the `per_token` largest, else 0
        out = out / sum(out), if `normalize`

    Rounding: softmax and choice in float32 (float64 for float64), the weights rounded once to
    `logits.dtype`. Choosing among probabilities that were rounded to bfloat16 first, as some
    engines do, makes ties, and other choices.
    Edges: equal probabilities go to the lowest id. A NaN, a +inf or -inf alone makes all
    probabilities NaN: experts 0 to `per_token` - 1 weigh NaN, whichever had it, and the token
    becomes NaN. A -inf beside finite logits weighs 0.
    Varies by model: `normalize` is `norm_topk_prob` in Qwen3-MoE. With it, a softmax over the
    chosen logits alone is the same.
    Raises: ValueError if there are fewer experts than a token asks for.
    Source: Shazeer et al. 2017, arXiv:1701.06538, section 2.1; Qwen Team 2025, arXiv:2505.09388.
    """
    if not 1 <= per_token <= logits.shape[-1]:
        raise ValueError(f"top_k_routing: {per_token} of {logits.shape[-1]} experts")
    wide = logits.astype(accumulator(logits.dtype), copy=False)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
        probs = powers / powers.sum(axis=-1, keepdims=True)
        best = np.argsort(-probs, axis=-1, kind="stable")[..., :per_token]
        chosen = np.take_along_axis(probs, best, axis=-1)
        if normalize:
            chosen = chosen / chosen.sum(axis=-1, keepdims=True)
    out = np.zeros_like(probs)
    np.put_along_axis(out, best, chosen, axis=-1)
    return rounded(out, logits.dtype)
