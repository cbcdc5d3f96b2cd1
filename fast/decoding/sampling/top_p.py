"""Keep the likeliest tokens by mass: nucleus sampling (Holtzman et al., 2019)."""

import numpy as np

from lockstep.fast.decoding.sampling.candidates import Candidates, shares


def top_p(left: Candidates, mass: float, *, ties: str) -> Candidates:
    """Keep the smallest best set whose mass reaches `mass`, best first.

    Differs from the reference: N tokens below (1 - mass) / N each have less than 1 - mass
    together, so none of them is needed, and only the others are sorted.
    """
    if mass == 1:
        return left
    probs = shares(left)
    likely = probs >= min((1 - mass) / len(probs), probs.max())
    total = np.exp(left.logits - left.logits.max()).sum()
    ranked = left.at(likely).best_first()
    reached = np.cumsum(np.exp(ranked.logits - ranked.logits[0])) / total
    count = min(int(np.searchsorted(reached, mass, side="left")) + 1, len(reached))
    if ties == "lowest":
        return ranked.at(slice(count))
    return ranked.at(ranked.logits >= ranked.logits[count - 1])
