"""A sampler's memory: it draws its random numbers, and knows the tokens so far."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lockstep.reference.scheduling.sampling_options import SamplingOptions


class Memory:
    """Called with the logits (V,) of one token after another of one text; returns their ids.

    `seen` is the prompt. `sample` is the package's.
    """

    sample: Callable[..., int]

    def __init__(self, options: SamplingOptions, uniforms: Iterator[float], seen: Sequence[int]):
        self.options, self.uniforms, self.seen = options, uniforms, list(seen)
        self.prompt = len(self.seen)

    def __call__(self, logits: Any) -> int:
        """Choose the next token. Only a draw takes a number: at temperature 0 none is taken."""
        uniform = next(self.uniforms) if self.options.temperature > 0 else 0.0
        seen, prompt = self.seen, self.prompt
        seen.append(self.sample(logits, self.options, uniform=uniform, seen=seen, prompt=prompt))
        return self.seen[-1]
