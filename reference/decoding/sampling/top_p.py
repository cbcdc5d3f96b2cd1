"""Keep the likeliest tokens by mass: nucleus sampling (Holtzman et al., 2019)."""

import numpy as np

from lockstep.reference.decoding.sampling.candidates import Candidates, weights


def top_p(left: Candidates, mass: float, *, ties: str, until: str) -> Candidates:
    """Keep the smallest best set whose mass reaches `mass`, best first; 1 keeps all as they are.

    The token that crosses is in, and one always is; if the mass must be "exceeded" and not only
    "reached", a sum that equals it is not enough. Of those that tie with the last one, `ties`
    keeps the "lowest" ids or "all". Rounding: sums are divided, not probabilities summed, so that
    8 of 10 equals reach 0.8 and not a hair less.
    """
    if mass == 1:
        return left
    ranked = left.best_first()
    reached = np.cumsum(weights(ranked)) / weights(left).sum()
    short = reached <= mass if until == "exceeded" else reached < mass
    count = min(int(short.sum()) + 1, len(reached))
    if ties == "lowest":
        return ranked.at(slice(count))
    return ranked.at(ranked.logits >= ranked.logits[count - 1])
