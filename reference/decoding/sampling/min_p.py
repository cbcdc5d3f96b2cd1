"""Keep the tokens that are not too unlikely beside the best one (Nguyen et al., 2024)."""

from lockstep.reference.decoding.sampling.candidates import Candidates, weights


def min_p(left: Candidates, least: float) -> Candidates:
    """Keep what has at least `least` times the best one's probability; 0 keeps all."""
    return left.at(weights(left) >= least)
