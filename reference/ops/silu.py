import numpy as np

from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Hidden


def silu(x: Hidden) -> Hidden:
    """Multiply each value by its own sigmoid.

        out = x / (1 + exp(-x))

    Rounding: computed in float32 (float64 for float64), rounded once to `x.dtype`.
    Edges: silu(-inf) = -0, the limit, where the formula alone gives NaN; silu(inf) = inf;
    large negative x underflows to -0; NaN propagates.
    Varies by model: GELU in GPT-2 and Gemma.
    Source: Elfwing et al. 2017, arXiv:1702.03118; Ramachandran et al. 2017, arXiv:1710.05941.
    """
    wide = x.astype(accumulator(x.dtype), copy=False)
    with np.errstate(under="ignore", invalid="ignore"):
        power = np.exp(-np.abs(wide))  # at most 1, so that no sign of x overflows
        out = wide * (np.where(wide < 0, power, 1) / (1 + power))
    return rounded(np.where(np.isneginf(wide), -0.0, out), x.dtype)
