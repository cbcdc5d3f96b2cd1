"""Keep the likeliest tokens by mass: nucleus sampling (Holtzman et al., 2019)."""

import numpy as np

from lockstep.reference.decoding.sampling.candidates import Candidates, shares


def top_p(left: Candidates, mass: float, *, ties: str) -> Candidates:
    """Keep the smallest best set whose mass reaches `mass`, best first; 1 keeps all as they are.

    The token that crosses is in, and one always is. Of those that tie with the last one, `ties`
    keeps the "lowest" ids or "all".
    """
    if mass == 1:
        return left
    ranked = left.best_first()
    probs = shares(ranked)
    before = np.cumsum(probs) - probs  # mass of the better tokens
    count = max(1, int((before < mass).sum()))
    if ties == "lowest":
        return ranked.at(slice(count))
    return ranked.at(ranked.logits >= ranked.logits[count - 1])
