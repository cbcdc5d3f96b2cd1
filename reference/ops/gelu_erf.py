import math

import numpy as np

from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Hidden

above = np.vectorize(math.erfc, otypes=[np.float64])  # NumPy has no error function of its own


def gelu_erf(x: Hidden) -> Hidden:
    """Multiply each value by the probability that a normal variable lies below it.

        out = 0.5 * x * (1 + erf(x / sqrt(2)))

    Called "gelu" in a config. Computed as 0.5 * x * erfc(-x / sqrt(2)): the same function, without
    taking 1 from nearly 1.
    Rounding: the error function in float64, the product in float32 (float64 for float64), rounded
    once to `x.dtype`.
    Edges: gelu(-inf) = -0, the limit; gelu(inf) = inf; large negative x gives -0; NaN propagates.
    Varies by model: GPT-2 itself and Gemma take `gelu_tanh`, up to 4.7e-4 away.
    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2.
    """
    wide = x.astype(accumulator(x.dtype), copy=False)
    share = 0.5 * above(wide / -math.sqrt(2))  # of the normal distribution that lies below x
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out = rounded(wide * share, wide.dtype)
    return rounded(np.where(np.isneginf(wide), -0.0, out), x.dtype)
