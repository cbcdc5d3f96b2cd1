import numpy as np

from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Keys, Queries, Scores


def attention_scores(queries: Queries, keys: Keys, *, scale: float) -> Scores:
    """Compare every query with every key of its group.

        out[h, i, j] = scale * sum over d of queries[h, i, d] * keys[h // (H/G), j, d]

    Grouped queries: H/G neighbouring query heads share one key head.
    Rounding: products, sums and the scale in float32 (float64 for float64), rounded once to the
    dtype of the queries.
    Edges: no keys give (B, H, L, 0). NaN and infinity propagate.
    Varies by model: `scale` is D ** -0.5 almost everywhere, 1 in Gemma 4.
    Raises: ValueError if H is no multiple of G.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; Ainslie et al. 2023, arXiv:2305.13245.
    """
    heads, groups = queries.shape[1], keys.shape[1]
    if heads % groups:
        raise ValueError(f"{heads} query heads, but should be a multiple of {groups} key heads")
    work = accumulator(queries.dtype)
    batch, _, length, width = queries.shape
    share = queries.reshape(batch, groups, heads // groups * length, width)  # of one key head
    with np.errstate(invalid="ignore", over="ignore"):
        out = share.astype(work, copy=False) @ keys.astype(work, copy=False).swapaxes(-1, -2)
        out *= work.type(scale)
    return rounded(out, queries.dtype).reshape(len(out), heads, length, keys.shape[2])
