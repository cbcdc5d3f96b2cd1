import numpy as np

from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Array, Mask, Queries, Scores, Values


def attention_context(probs: Scores, values: Values, mask: Mask) -> Queries:
    """Average the values, weighted by the attention probabilities.

        out[h, i] = sum over j of probs[h, i, j] * values[h // (H/G), j]

    Rounding: products and sums in float32 (float64 for float64), once to the dtype of `probs`.
    Edges: a masked value contributes nothing, even NaN or infinity (0 * NaN would be NaN), except
    in a row that sees no key, where `probs` alone decide; a seen NaN spoils what sees it. No
    keys give zeros.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1.
    """
    work = accumulator(probs.dtype)
    (batch, heads, length, held), groups = probs.shape, values.shape[1]
    wide, values = probs.astype(work, copy=False), values.astype(work, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isfinite(values).all():
            out = wide.reshape(batch, groups, heads // groups * length, held) @ values
        else:
            out = select_sum(wide, np.repeat(values, heads // groups, axis=1), mask)
    return rounded(out, probs.dtype).reshape(len(out), heads, length, values.shape[3])


def select_sum(probs: Array, values: Array, mask: Mask) -> Array:
    """Sum only over the seen keys: slow, for the rare values that are not finite."""
    mask = mask | ~mask.any(axis=-1, keepdims=True)  # a row that sees no key keeps its policy
    terms = probs[..., None] * values[:, :, None]  # (B, H, L, S, D)
    return np.where(mask[..., None], terms, 0).sum(axis=-2)
