"""Sharpen or flatten the distribution."""

from lockstep.reference.decoding.sampling.candidates import Candidates


def temperature(left: Candidates, value: float) -> Candidates:
    """Divide the logits by `value`, which is above 0."""
    return left._replace(logits=left.logits / value)
