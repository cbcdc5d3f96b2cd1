"""Keep the tokens that are about as surprising as expected (Meister et al., 2022)."""

import numpy as np

from lockstep.reference.decoding.sampling.candidates import Candidates, shares


def typical(left: Candidates, mass: float, *, until: str) -> Candidates:
    """Keep those whose surprise -ln p is nearest to the entropy, nearest first; 1 keeps all.

    They are taken until their mass is "reached", "reached, with ties" (then all that are as near
    as the last one stay too), or "exceeded". One always is. Of equals the lowest id comes first.
    """
    if mass == 1:
        return left
    probs = shares(left)
    shifted = left.logits - left.logits.max()
    surprise = np.log(np.exp(shifted).sum()) - shifted  # finite where the probability is 0
    distance = np.abs(surprise - (probs * surprise).sum())
    order = np.lexsort((left.ids, distance))
    cumulative = np.cumsum(probs[order])
    short = cumulative <= mass if until == "exceeded" else cumulative < mass
    last = min(int(short.sum()), len(order) - 1)
    if until == "reached, with ties":
        last = int((distance <= distance[order[last]]).sum()) - 1
    return left.at(order[: last + 1])
