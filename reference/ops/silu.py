import numpy as np

from lockstep.reference.portions import row_by_row
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
    return row_by_row(sigmoid_times, x)


def sigmoid_times(x: Hidden) -> Hidden:
    """Return x / (1 + exp(-x)) of some rows."""
    wide = x.astype(accumulator(x.dtype), copy=False)
    with np.errstate(under="ignore", invalid="ignore"):
        # Neither power exceeds 1, so that no sign of x overflows; their ratio is the sigmoid.
        sigmoid = np.exp(np.minimum(wide, 0)) / (1 + np.exp(-np.abs(wide)))
        out = np.maximum(wide, np.finfo(wide.dtype).min) * sigmoid  # -inf * 0 would be NaN
    return rounded(out, x.dtype)
