from lockstep.reference.ops.attention_context import attention_context
from lockstep.reference.ops.attention_scores import attention_scores
from lockstep.reference.ops.softmax import softmax
from lockstep.reference.shapes import Keys, Mask, Queries, Values


def attention(
    queries: Queries, keys: Keys, values: Values, mask: Mask, *, scale: float, masked_row: str
) -> Queries:
    """Attend: scores, softmax and weighted average as one operation.

        out = attention_context(softmax(attention_scores(queries, keys), mask), values)

    Rounding: those of its parts, the scores and probabilities rounded to the dtype between them.
    A fused kernel keeps both in float32.
    Edges: those of `softmax` and `attention_context`; no keys give zeros, whatever `masked_row`.
    Varies by model: `scale`, and what the mask hides.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; Ainslie et al. 2023, arXiv:2305.13245.
    """
    scores = attention_scores(queries, keys, scale=scale)
    probs = softmax(scores, mask, masked_row=masked_row)
    return attention_context(probs, values, mask)
