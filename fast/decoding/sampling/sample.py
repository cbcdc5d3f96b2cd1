"""Choose the next token from its logits, as the reference does, sorting as little as it can.

Sums are rounded as the reference rounds them, so that both choose alike at a border too. Only
typical sampling may not, where rounding decides which of two tokens is nearer to the entropy.
"""

from collections.abc import Sequence

import numpy as np

from lockstep.fast.decoding.sampling.candidates import Candidates, candidates, shares
from lockstep.fast.decoding.sampling.draw import draw
from lockstep.fast.decoding.sampling.greedy import greedy
from lockstep.fast.decoding.sampling.logit_bias import logit_bias
from lockstep.fast.decoding.sampling.min_p import min_p
from lockstep.fast.decoding.sampling.penalties import penalties
from lockstep.fast.decoding.sampling.temperature import temperature
from lockstep.fast.decoding.sampling.top_k import top_k
from lockstep.fast.decoding.sampling.top_p import top_p
from lockstep.fast.decoding.sampling.typical import typical
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.sampling_options import SamplingOptions


def sample(
    logits: Array,
    options: SamplingOptions,
    *,
    uniform: float,
    seen: Sequence[int] = (),
    prompt: int = 0,
) -> int:
    """Draw a token from its logits (V,). `seen` are the tokens before it, for the penalties."""
    if not 0 <= uniform < 1:
        raise ValueError(f"uniform={uniform}, but should be at least 0 and below 1")
    if options.is_argmax:
        return greedy(logits)
    left = remaining(logits, options, seen, prompt)
    if options.temperature == 0:
        return int(left.ids[left.logits == left.logits.max()].min())
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
    greedy(logits)  # for its errors: a bias may hide what is wrong
    if options.logit_bias:
        logits = logit_bias(logits, options.logit_bias)
    if options.looks_back:
        logits = penalties(
            logits,
            seen,
            repetition=options.repetition_penalty,
            frequency=options.frequency_penalty,
            presence=options.presence_penalty,
            window=options.window,
            uncounted=prompt if options.rules.counts == "answer" else 0,
        )
    left = candidates(logits)
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
