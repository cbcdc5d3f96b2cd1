"""Choose the next token from its logits, with a uniform number that comes from outside.

Two backends with different random generators can so be compared token for token. Everything is
computed in float64; ties go to the lowest token id.
"""

from collections.abc import Sequence

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.decoding.sampling.candidates import Candidates, candidates, checked, shares
from lockstep.reference.decoding.sampling.draw import draw
from lockstep.reference.decoding.sampling.logit_bias import logit_bias
from lockstep.reference.decoding.sampling.min_p import min_p
from lockstep.reference.decoding.sampling.penalties import penalties
from lockstep.reference.decoding.sampling.temperature import temperature
from lockstep.reference.decoding.sampling.top_k import top_k
from lockstep.reference.decoding.sampling.top_p import top_p
from lockstep.reference.decoding.sampling.typical import typical
from lockstep.reference.shapes import Array
from lockstep.reference.tokenizer.sampling_options import SamplingOptions


def sample(
    logits: Array,
    options: SamplingOptions,
    *,
    uniform: float,
    seen: Sequence[int] = (),
    prompt: int = 0,
) -> int:
    """Draw a token from its logits (V,). `seen` are the tokens before it, for the penalties.

    The first `prompt` of them are the prompt: some engines count only what was answered.
    `uniform` is in [0, 1). At temperature 0 the best token is taken and `uniform` is not looked at.
    Raises: InputError for logits as in `greedy`, and for token ids beyond the vocabulary;
    ValueError for a `uniform` out of range.
    """
    if not 0 <= uniform < 1:
        raise ValueError(f"uniform={uniform}, but should be at least 0 and below 1")
    left = remaining(logits, options, seen, prompt)
    if options.temperature == 0:
        return int(left.best_first().ids[0])
    return draw(left, uniform, rule=options.rules.draws)


def probabilities(
    logits: Array, options: SamplingOptions, seen: Sequence[int] = (), prompt: int = 0
) -> Array:
    """Return each token's probability after all stages, (V,)."""
    left = remaining(logits, options, seen, prompt)
    if options.temperature == 0:
        left = left.best_first().at(slice(1))
    out = np.zeros(len(logits))
    out[left.ids] = shares(left)
    return out


def remaining(
    logits: Array, options: SamplingOptions, seen: Sequence[int], prompt: int
) -> Candidates:
    """Apply the bias, the penalties and then the engine's stages in its order."""
    changed = logit_bias(checked(logits), options.logit_bias)
    if options.looks_back:
        changed = penalties(
            changed,
            seen,
            repetition=options.repetition_penalty,
            frequency=options.frequency_penalty,
            presence=options.presence_penalty,
            window=options.window,
            uncounted=prompt if options.rules.counts == "answer" else 0,
        )
    left = candidates(changed)
    if options.temperature == 0 and not options.rules.greedy_after_cuts:
        return left
    check_top_k(options, len(logits))
    for name in options.rules.order:
        left = stage(name, left, options)
    return left


def stage(name: str, left: Candidates, options: SamplingOptions) -> Candidates:
    """Apply one stage as the engine understands it."""
    rules = options.rules
    match name:
        case "temperature":
            return left if options.temperature == 0 else temperature(left, options.temperature)
        case "top_k":
            return top_k(left, options.top_k, ties=rules.top_k_ties)
        case "top_p":
            share = options.share("top_p")
            return top_p(left, share, ties=rules.top_p_ties, until=rules.top_p)
        case "min_p":
            return min_p(left, options.min_p)
        case "typical_p":
            return typical(left, options.share("typical_p"), until=rules.typical)
    raise ValueError(f"{name} is no stage")


def check_top_k(options: SamplingOptions, vocabulary: int) -> None:
    """Refuse what the engine refuses of a `top_k` at or beyond the vocabulary."""
    most = options.rules.most_top_k(vocabulary)
    if options.top_k > most:
        what = f"top_k={options.top_k}, but {options.semantics} takes at most {most} here"
        raise InputError("sampling", what)
