"""Keep the likeliest tokens by mass: nucleus sampling (Holtzman et al., 2019)."""

import numpy as np

from lockstep.fast.decoding.sampling.candidates import Candidates, weights


def top_p(left: Candidates, mass: float, *, ties: str, until: str) -> Candidates:
    """Keep the smallest best set whose mass reaches `mass`, best first.

    Differs from the reference: N tokens below (1 - mass) / N each have less than 1 - mass
    together, so none of them is needed, and only the others are sorted. Where those miss `mass` by
    a rounding, all are.
    """
    if mass == 1:
        return left
    powers = weights(left)
    total = powers.sum()
    likely = powers >= min((1 - mass) / len(powers) * total, 1.0)
    for some in (left.at(likely), left):
        ranked = some.best_first()
        reached = np.cumsum(weights(ranked)) / total
        if reached[-1] > mass or (reached[-1] == mass and until == "reached"):
            break
    side = "right" if until == "exceeded" else "left"
    count = min(int(np.searchsorted(reached, mass, side=side)) + 1, len(reached))
    if ties == "lowest":
        return ranked.at(slice(count))
    return ranked.at(ranked.logits >= ranked.logits[count - 1])
