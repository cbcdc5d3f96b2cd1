import mlx.core as mx

from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Scores

MASKED_ROWS = ("uniform", "zero", "nan")


def softmax(scores: Scores, mask: Seen, *, masked_row: str) -> Scores:
    """Turn each query's scores into weights that sum to one over the keys it may see.

    Differs from `reference.ops.softmax`: in nothing; float32 inside.
    """
    if masked_row not in MASKED_ROWS:
        raise ValueError(f"masked_row={masked_row!r}, but should be one of {[*MASKED_ROWS]}")
    if not scores.size:  # over no keys MLX reads memory that is not its own, and may never end
        return scores
    if mask.kind == "all":
        return mx.softmax(scores, axis=-1, precise=True)
    seen = mx.array(mask.mask)
    weights = mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1, precise=True)
    if not mask.blind:
        return weights
    policy = {"uniform": 1 / scores.shape[-1], "zero": 0.0, "nan": mx.nan}[masked_row]
    return mx.where(seen.any(axis=-1, keepdims=True), weights, mx.array(policy, scores.dtype))
