"""Turn a uniform number into one of the tokens that are left: the inverse of their distribution."""

import numpy as np

from lockstep.reference.decoding.sampling.candidates import Candidates, shares, weights


def draw(left: Candidates, uniform: float, *, rule: str) -> int:
    """Return the id of the token in whose part of the cumulative probability `uniform` falls.

    "ids" goes by ids, and the first whose sum exceeds `uniform` wins. "candidates" goes in the
    order of the candidates, and the first whose sum reaches it wins. Both scale `uniform` to the
    last sum of weights: half of 6 equals is 3, to the bit. "ids, unscaled" sums probabilities up,
    which may miss 1 by rounding, and takes the best token, the last of equals, if no sum exceeds
    `uniform`.
    """
    ordered = left if rule == "candidates" else left.at(np.argsort(left.ids))
    unscaled = rule == "ids, unscaled"
    parts = shares(ordered) if unscaled else weights(ordered)
    cumulative = np.cumsum(parts)
    target = uniform if unscaled else uniform * cumulative[-1]
    side = "left" if rule == "candidates" else "right"
    place = int(np.searchsorted(cumulative, target, side=side))
    if place == len(parts):
        place = int(np.flatnonzero(parts == parts.max())[-1])
    return int(ordered.ids[place])
