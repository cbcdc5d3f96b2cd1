"""What modules give, by plain loops in float64."""

from typing import Any

import numpy as np

OWN_NORM = "pre_feedforward_layernorm_2"
PARTS = ("gate", "up", "down")


def experts_by_loop(
    model: Any, taps: dict[str, np.ndarray], at: str, inputs: np.ndarray, count: int
) -> np.ndarray:
    """Return what Gemma's experts add: of each token the likeliest, whose shares add up to 1."""

    def weight(name: str) -> np.ndarray:
        return model.checkpoint.tensor(at + name).astype(np.float64)

    factors = weight("router.per_expert_scale")
    gates, ups, downs = (weight(f"experts.{part}_proj.weight") for part in PARTS)
    out = np.zeros_like(inputs)
    for token, scores in enumerate(taps[at + "router.proj"][0]):
        probs = np.exp(scores) / np.exp(scores).sum()
        best = np.argsort(-probs)[:count]
        for one in best:
            gate, up = gates[one] @ inputs[0, token], ups[one] @ inputs[0, token]
            gated = gelu(gate) * up
            share = probs[one] / probs[best].sum() * factors[one]
            out[0, token] += share * (downs[one] @ gated)
    return out


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
