import numpy as np

from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Outputs


def softcap(x: Outputs, *, cap: float) -> Outputs:
    """Bend values so that none goes beyond `cap` in either direction.

        out = cap * tanh(x / cap)

    Rounding: computed in float32 (float64 for float64), rounded once to `x.dtype`.
    Edges: plus and minus infinity give plus and minus `cap`; NaN propagates. The order of values
    stays, up to ties that rounding makes, so a greedy choice is the same; probabilities are not.
    Varies by model: Gemma 4 caps its logits at 30; Gemma 2 its attention scores too.
    Source: Gemma Team 2024, arXiv:2408.00118, section 2.
    """
    work = accumulator(x.dtype)
    bent = np.tanh(x.astype(work, copy=False) / work.type(cap))
    return rounded(work.type(cap) * bent, x.dtype)
