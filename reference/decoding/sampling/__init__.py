"""From logits to a token: one stage a file, put together in `sample.py`."""

from lockstep.reference.decoding.sampling.greedy import greedy
from lockstep.reference.decoding.sampling.sample import probabilities, sample
from lockstep.reference.decoding.sampling.sampler import Sampler

__all__ = ["Sampler", "greedy", "probabilities", "sample"]
