import math

import numpy as np

from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Hidden

SLOPE = math.sqrt(2 / math.pi)


def gelu_tanh(x: Hidden) -> Hidden:
    """Multiply each value by (nearly) the probability that a normal variable lies below it.

        out = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))

    Called "gelu_new" by GPT-2 and "gelu_pytorch_tanh" by Gemma. Computed as x / (1 + exp(-2 * t)),
    where t is what tanh is taken of: the same function, without taking 1 from nearly 1.
    Rounding: computed in float32 (float64 for float64), rounded once to `x.dtype`.
    Edges: gelu(-inf) = -0, the limit; gelu(inf) = inf; large negative x gives -0; NaN propagates.
    Varies by model: some take the exact function, `gelu_erf`; Llama and Qwen take `silu`.
    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2.
    """
    wide = x.astype(accumulator(x.dtype), copy=False)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        cube = wide * wide * wide  # a power takes a hundred times as long
        bent = SLOPE * (wide + 0.044715 * cube)
        out = wide / (1 + np.exp(-2 * bent))
    return rounded(np.where(np.isneginf(wide), -0.0, out), x.dtype)
