import numpy as np

from lockstep.reference.precision import rounded
from lockstep.reference.shapes import Hidden


def scale(x: Hidden, *, by: float) -> Hidden:
    """Multiply every value by one number that the architecture fixes.

        out = x * by

    Rounding: twice. The number is rounded to `x.dtype` first, as PyTorch and MLX hold it: the root
    of 2816, 53.066, is 53 in bfloat16. Then the product is.
    Edges: NaN propagates; 0 * inf is NaN.
    Varies by model: Gemma multiplies the embedding by the root of its width.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.4.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return x * rounded(np.asarray(by), x.dtype)
