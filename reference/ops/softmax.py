import numpy as np

from lockstep.reference.portions import portions
from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Array, Mask, Scores

MASKED_ROWS = {
    "uniform": lambda keys: 1 / keys,
    "zero": lambda keys: 0.0,
    "nan": lambda keys: np.nan,
}


def softmax(scores: Scores, mask: Mask, *, masked_row: str) -> Scores:
    """Turn each query's scores into weights that sum to one over the keys it may see.

        out[j] = exp(scores[j] - peak) / sum over seen k of exp(scores[k] - peak)

    Rounding: in float32 (float64 for float64), rounded once to `scores.dtype`. Subtracting the
    peak changes nothing but keeps exp within range, so scores of any size are exact to rounding.
    Edges: a masked key is left out, not lowered, so nothing it holds can matter, NaN included.
    A row that sees no key follows `masked_row`: "uniform" weighs all keys alike, "zero" gives
    zeros, "nan" NaN; engines differ, and none is wrong. One NaN or +inf among the seen scores
    makes the whole row NaN, its masked keys too; so does a seen row of -inf alone. No keys give
    (.., 0).
    Raises: ValueError for another `masked_row`.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; Bridle 1990, "Probabilistic
    interpretation of feedforward classification network outputs", section 2.
    """
    if masked_row not in MASKED_ROWS:
        raise ValueError(f"masked_row={masked_row!r}, but should be one of {[*MASKED_ROWS]}")
    wide = np.atleast_2d(scores.astype(accumulator(scores.dtype), copy=False))
    mask = np.broadcast_to(mask, (*mask.shape[:-2], *wide.shape[-2:]))
    out = np.empty(wide.shape, scores.dtype)
    queries = wide.shape[-2]
    for some in portions(queries, wide.size // max(queries, 1)):
        rows = np.s_[..., some, :]
        out[rows] = rounded(weights(wide[rows], mask[rows], masked_row), scores.dtype)
    return out.reshape(scores.shape)


def weights(scores: Array, mask: Mask, masked_row: str) -> Array:
    """Return the weights of some queries, in the dtype that sums are carried in."""
    powers = np.zeros(scores.shape, scores.dtype)  # as they stay for a masked key
    columns = np.flatnonzero(mask.any(axis=tuple(range(mask.ndim - 1))))
    reach = columns.max(initial=-1) + 1  # no query sees a key from there on
    seen = scores[..., :reach].copy()
    np.copyto(seen, -np.inf, where=~mask[..., :reach])
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        seen -= peak(seen)
        np.exp(seen, out=powers[..., :reach])
        powers /= powers.sum(axis=-1, keepdims=True)
    blind = ~mask.any(axis=-1, keepdims=True)
    if blind.any():
        np.copyto(powers, MASKED_ROWS[masked_row](max(scores.shape[-1], 1)), where=blind)
    return powers


def peak(seen: Array) -> Array:
    """Return the largest value of each row, 0 where all are -inf, so that exp stays quiet."""
    highest = seen.max(axis=-1, keepdims=True, initial=-np.inf)
    return np.where(np.isneginf(highest), 0, highest)
