"""A sampler with a memory: it draws its random numbers, and knows the tokens so far."""

from lockstep.fast.decoding.sampling.sample import sample
from lockstep.reference.scheduling.memory import Memory


class Sampler(Memory):
    """Called with the logits (V,) of one token after another of one text; returns their ids.

    `seen` is the prompt.
    """

    sample = staticmethod(sample)
