"""Keep the tokens that are about as surprising as expected (Meister et al., 2022)."""

import numpy as np

from lockstep.fast.decoding.sampling.candidates import Candidates


def typical(left: Candidates, mass: float, *, until: str) -> Candidates:
    """Keep those whose surprise -ln p is nearest to the entropy, nearest first.

    Differs from the reference: ln of the sum is in the surprise and in the entropy, and cancels.
    """
    if mass == 1:
        return left
    below = left.logits - left.logits.max()
    probs = np.exp(below)
    probs /= probs.sum()
    distance = np.abs(probs @ below - below)
    order = np.lexsort((left.ids, distance))
    side = "right" if until == "exceeded" else "left"
    last = np.searchsorted(np.cumsum(probs[order]), mass, side=side)
    last = min(int(last), len(order) - 1)
    if until == "reached, with ties":
        last = int(np.searchsorted(distance[order], distance[order[last]], side="right")) - 1
    return left.at(order[: last + 1])
