"""A draft runs ahead, and the model reads what it said in one evaluation.

The names are those of `reference/decoding/speculative.py`; read that first.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from lockstep.fast.decoding import host
from lockstep.fast.decoding.sampling import greedy, probabilities
from lockstep.reference.scheduling import drafting


def verified(
    drafted: Sequence[int],
    draft: Sequence[np.ndarray],
    target: Sequence[np.ndarray],
    uniforms: Iterator[float],
) -> list[int]:
    """Return the drafted tokens that are kept, and one that is drawn.

    Differs from the reference: in nothing; it is short already.
    """
    for place, (token, q, p) in enumerate(zip(drafted, draft, target, strict=False)):
        kept = p[token] / q[token]
        if kept >= 1 or (kept > 0 and next(uniforms) < kept):
            continue
        rest = np.maximum(p - q, 0)
        return [*drafted[:place], drawn(rest if rest.any() else p, uniforms)]
    return [*drafted, drawn(target[len(drafted)], uniforms)]


def drawn(weights: np.ndarray, uniforms: Iterator[float]) -> int:
    """Return an id with the probability of its weight (V,). A single one takes no number."""
    ids = np.flatnonzero(weights)
    if len(ids) == 1:
        return int(ids[0])
    sums = np.cumsum(weights[ids])
    place = np.searchsorted(sums, next(uniforms) * sums[-1], side="right")
    return int(ids[min(place, len(ids) - 1)])


RULES = drafting.Rules(host, greedy, probabilities, verified, drawn)
generate = partial(drafting.generate, rules=RULES)
ModelDraft = partial(drafting.ModelDraft, rules=RULES)
