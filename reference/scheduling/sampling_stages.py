"""In which order a sampler's stages are applied: by the engine's rules. The stages are handed in.

What a stage does with logits rounds, so each package has its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.scheduling.sampling_options import SamplingOptions


@dataclass(frozen=True)
class Stages:
    """A package's stages, by their names; `candidates` makes of logits (V,) what is cut down."""

    logit_bias: Callable[..., Any]
    penalties: Callable[..., Any]
    candidates: Callable[[Any], Any]
    temperature: Callable[..., Any]
    top_k: Callable[..., Any]
    top_p: Callable[..., Any]
    min_p: Callable[..., Any]
    typical: Callable[..., Any]

    def remaining(
        self, logits: Any, options: SamplingOptions, seen: Sequence[int], prompt: int
    ) -> Any:
        """Apply the bias, the penalties and then the engine's stages in its order."""
        if options.logit_bias:
            logits = self.logit_bias(logits, options.logit_bias)
        if options.looks_back:
            logits = self.penalised(logits, options, seen, prompt)
        left = self.candidates(logits)
        if options.temperature == 0 and not options.rules.greedy_after_cuts:
            return left
        check_top_k(options, len(logits))
        for name in options.rules.order:
            left = self.stage(name, left, options)
        return left

    def penalised(
        self, logits: Any, options: SamplingOptions, seen: Sequence[int], prompt: int
    ) -> Any:
        """Apply the penalties for the earlier ids `seen`; the first `prompt` of them were given."""
        return self.penalties(
            logits,
            seen,
            repetition=options.repetition_penalty,
            frequency=options.frequency_penalty,
            presence=options.presence_penalty,
            window=options.window,
            uncounted=prompt if options.rules.counts == "answer" else 0,
        )

    def stage(self, name: str, left: Any, options: SamplingOptions) -> Any:
        """Apply one stage as the engine understands it."""
        rules = options.rules
        match name:
            case "temperature":
                return self.temperature(left, options.heat) if options.heat else left
            case "top_k":
                return self.top_k(left, options.top_k, ties=rules.top_k_ties)
            case "top_p":
                share = options.share("top_p")
                return self.top_p(left, share, ties=rules.top_p_ties, until=rules.top_p)
            case "min_p":
                return self.min_p(left, options.min_p)
            case "typical_p":
                return self.typical(left, options.share("typical_p"), until=rules.typical)
        raise ValueError(f"{name} is no stage")


def check_top_k(options: SamplingOptions, vocabulary: int) -> None:
    """Refuse what the engine refuses of a `top_k` at or beyond the vocabulary."""
    most = options.rules.most_top_k(vocabulary)
    if options.top_k > most:
        what = f"top_k={options.top_k}, but {options.semantics} takes at most {most} here"
        raise InputError("sampling", what)


def check_uniform(uniform: float) -> None:
    """Raises: ValueError for a number that a draw cannot be made with."""
    if not 0 <= uniform < 1:
        raise ValueError(f"uniform={uniform}, but should be at least 0 and below 1")
