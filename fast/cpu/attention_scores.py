import numpy as np

from lockstep.fast.shapes import Keys, Queries, Scores


def attention_scores(queries: Queries, keys: Keys, *, scale: float) -> Scores:
    """Compare every query with every key of its group.

    Differs from `reference.ops.attention_scores`: the query is scaled, not the product, and the
    queries of a group are one matrix, so that no key is repeated.
    """
    batch, heads, length, width = queries.shape
    groups, held = keys.shape[1], keys.shape[2]
    if heads % groups:
        raise ValueError(f"{heads} query heads, but should be a multiple of {groups} key heads")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scaled = queries.astype(np.float32) * np.float32(scale)
        grouped = scaled.reshape(batch, groups, heads // groups * length, width)
        scores = grouped @ keys.astype(np.float32, copy=False).swapaxes(-1, -2)
        return scores.astype(queries.dtype, copy=False).reshape(batch, heads, length, held)
