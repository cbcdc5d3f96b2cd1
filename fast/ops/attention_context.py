from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Queries, Scores, Values


def attention_context(probs: Scores, values: Values, mask: Seen) -> Queries:
    """Average the values, weighted by the attention probabilities.

    Differs from `reference.ops.attention_context`: a masked NaN or infinity does spoil what
    ignores it (0 * NaN), since looking for one would cost a pass over the values; `mask` is unused.
    """
    batch, heads, length, held = probs.shape
    groups = values.shape[1]
    grouped = probs.reshape(batch, groups, heads // groups, length, held)
    return (grouped @ values[:, :, None]).reshape(batch, heads, length, values.shape[-1])
