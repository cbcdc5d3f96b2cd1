"""A draft runs ahead, the model keeps what it would have said itself: the same distribution.

Here is what rounds, `verified`; who reads what is in `reference/scheduling/drafting.py`.
Source: Leviathan et al. 2023, arXiv:2211.17192, algorithm 1; Chen et al. 2023, arXiv:2302.01318.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from lockstep.reference.decoding import host
from lockstep.reference.decoding.sampling import greedy, probabilities
from lockstep.reference.scheduling import drafting
from lockstep.reference.shapes import Array


def verified(
    drafted: Sequence[int],
    draft: Sequence[Array],
    target: Sequence[Array],
    uniforms: Iterator[float],
) -> list[int]:
    """Return the drafted tokens that are kept, and one that is drawn.

    A token d is kept with probability min(1, p(d) / q(d)), where q (V,) is what the draft drew it
    from and p (V,) what the model would have drawn from. Instead of the first that is not kept one
    is drawn from max(p - q, 0), scaled to 1; after the last, one from p: `target` has one more
    distribution than `draft`. Each token then has the distribution p, whatever q is.
    Rounding: in float64. Where p - q is 0 everywhere by rounding, p itself is drawn from.
    """
    for place, (token, q, p) in enumerate(zip(drafted, draft, target, strict=False)):
        kept = p[token] / q[token]
        if kept >= 1 or (kept > 0 and next(uniforms) < kept):
            continue
        rest = np.maximum(p - q, 0)
        return [*drafted[:place], drawn(rest if rest.any() else p, uniforms)]
    return [*drafted, drawn(target[len(drafted)], uniforms)]


def drawn(weights: Array, uniforms: Iterator[float]) -> int:
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
