import numpy as np

from lockstep.reference.ops.attention_context import attention_context
from lockstep.reference.ops.attention_scores import attention_scores
from lockstep.reference.ops.softmax import softmax
from lockstep.reference.shapes import Keys, Mask, Queries, Values

FEW = 64  # queries whose scores stand in memory at a time


def attention(
    queries: Queries, keys: Keys, values: Values, mask: Mask, *, scale: float, masked_row: str
) -> Queries:
    """Attend: scores, softmax and weighted average as one operation.

        out = attention_context(softmax(attention_scores(queries, keys), mask), values)

    Rounding: those of its parts, the scores and probabilities rounded to the dtype between them.
    A fused kernel keeps both in float32.
    Edges: those of `softmax` and `attention_context`; no keys give zeros, whatever `masked_row`.
    Varies by model: `scale`, and what the mask hides.
    Memory: the scores of `FEW` queries at a time, over the keys that one of them sees.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; Ainslie et al. 2023, arXiv:2305.13245.
    """
    length, held = queries.shape[2], keys.shape[2]
    mask = np.broadcast_to(mask, (*mask.shape[:-2], length, held))
    out = np.empty((*queries.shape[:3], values.shape[3]), queries.dtype)
    for start in range(0, length, FEW):
        some = np.s_[:, :, start : start + FEW]
        near = seen_of(mask[some])
        seen, key, value = mask[some][..., near], keys[:, :, near], values[:, :, near]
        scores = attention_scores(queries[some], key, scale=scale)
        out[some] = attention_context(softmax(scores, seen, masked_row=masked_row), value, seen)
    return out


def seen_of(mask: Mask) -> slice:
    """Return the keys from the first that is seen to the last; all of them if a query
    sees none, since `masked_row` speaks of all."""
    seen = np.flatnonzero(mask.any(axis=(0, 1, 2)))
    all_see = seen.size and mask.any(axis=-1).all()
    return slice(seen[0], seen[-1] + 1) if all_see else slice(None)
