"""Keep the likeliest tokens by number."""

import numpy as np

from lockstep.fast.decoding.sampling.candidates import Candidates


def top_k(left: Candidates, count: int, *, ties: str) -> Candidates:
    """Keep the `count` best; only they are sorted.

    Differs from the reference: a partition finds the border, and ties at it are counted.
    """
    if count == 0:
        return left
    if count >= len(left.ids):
        return left.best_first()
    border = np.partition(left.logits, -count)[-count]
    if ties == "all":
        return left.at(left.logits >= border).best_first()
    above, level = (np.flatnonzero(one) for one in (left.logits > border, left.logits == border))
    level = level[np.argsort(left.ids[level], kind="stable")][: count - len(above)]
    return left.at(np.sort(np.concatenate([above, level]))).best_first()
