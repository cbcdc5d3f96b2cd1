import numpy as np

from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Queries, Scores, Values


def attention_context(probs: Scores, values: Values, mask: Seen) -> Queries:
    """Average the values, weighted by the attention probabilities.

    Differs from `reference.ops.attention_context`: the queries of a group are one matrix; a masked
    NaN or infinity does spoil what ignores it, and `mask` is unused.
    """
    batch, heads, length, held = probs.shape
    groups, width = values.shape[1], values.shape[-1]
    grouped = probs.astype(np.float32, copy=False).reshape(
        batch, groups, heads // groups * length, held
    )
    with np.errstate(invalid="ignore", over="ignore"):
        out = grouped @ values.astype(np.float32, copy=False)
        return out.astype(probs.dtype, copy=False).reshape(batch, heads, length, width)
