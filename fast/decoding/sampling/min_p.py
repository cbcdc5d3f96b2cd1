"""Keep the tokens that are not too unlikely beside the best one (Nguyen et al., 2024)."""

from lockstep.fast.decoding.sampling.candidates import Candidates, weights


def min_p(left: Candidates, least: float) -> Candidates:
    """Keep what has at least `least` times the best one's probability: their sum cancels out."""
    if least == 0:
        return left
    return left.at(weights(left) >= least)
