import numpy as np

from lockstep.reference.precision import rounded
from lockstep.reference.shapes import Gain, Hidden


def gain(x: Hidden, weights: Gain) -> Hidden:
    """Multiply each feature by a learned number of its own, or all of them by a single one.

        out = x * weights                (over the last axis; `weights` may also be (1,))

    Rounding: the weights to `x.dtype`, then the product.
    Edges: NaN propagates; 0 * inf is NaN.
    Varies by model: Gemma 4 alone has it: `layer_scalar` (1,), and its router's `scale` (E,) and
    `per_expert_scale` (X,).
    Raises: ValueError unless there are as many weights as features, or one.
    Source: `modeling_gemma4.py` of transformers.
    """
    if weights.shape not in ((1,), x.shape[-1:]):
        raise ValueError(f"gain: weights.shape={weights.shape}, but x.shape={x.shape}")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return x * rounded(weights, x.dtype)
