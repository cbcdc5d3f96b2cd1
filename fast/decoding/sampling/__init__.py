"""From logits to a token: one stage a file, put together in `sample.py`."""

from lockstep.fast.decoding.sampling.greedy import greedy
from lockstep.fast.decoding.sampling.sample import probabilities, sample
from lockstep.fast.decoding.sampling.sampler import Sampler

__all__ = ["Sampler", "greedy", "probabilities", "sample"]
