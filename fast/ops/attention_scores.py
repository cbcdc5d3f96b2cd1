from lockstep.fast.shapes import Keys, Queries, Scores


def attention_scores(queries: Queries, keys: Keys, *, scale: float) -> Scores:
    """Compare every query with every key of its group.

    Differs from `reference.ops.attention_scores`: the query is scaled, not the product; in half
    precision the scale and the scaled query are rounded.
    """
    batch, heads, length, width = queries.shape
    groups, held = keys.shape[1], keys.shape[2]
    if heads % groups:
        raise ValueError(f"{heads} query heads, but should be a multiple of {groups} key heads")
    grouped = (queries * scale).reshape(batch, groups, heads // groups, length, width)
    scores = grouped @ keys[:, :, None].swapaxes(-1, -2)
    return scores.reshape(batch, heads, length, held)
