"""Choose the next token from its logits, with a uniform number that comes from outside.

Two backends with different random generators can so be compared token for token. Everything is
computed in float64; ties go to the lowest token id.
"""

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.shapes import Array
from lockstep.reference.tokenizer.sampling_options import SamplingOptions


def greedy(logits: Array) -> int:
    """Return the id of the largest logit, the lowest of equals.

    Raises: InputError if a logit is NaN or +inf, or none is above -inf.
    """
    return int(np.argmax(checked(logits)))


def sample(logits: Array, options: SamplingOptions, *, uniform: float) -> int:
    """Draw a token: the first whose cumulative probability, in order of ids, exceeds `uniform`.

    `uniform` is in [0, 1). At temperature 0 this is `greedy` and `uniform` is not looked at.
    Raises: InputError for logits as in `greedy`; ValueError for a `uniform` out of range.
    """
    if not 0 <= uniform < 1:
        raise ValueError(f"uniform={uniform}, but should be at least 0 and below 1")
    if options.temperature == 0:
        return greedy(logits)
    cumulative = np.cumsum(probabilities(logits, options))
    # The last sum may fall short of 1 by rounding: scale the uniform to it instead.
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def probabilities(logits: Array, options: SamplingOptions) -> Array:
    """Return each token's probability after temperature, top-k, top-p and min-p, (V,)."""
    scaled = checked(logits) / options.temperature
    ranked = np.argsort(-scaled, kind="stable")  # best first, the lowest id of equals first
    kept = ranked[: options.top_k or None]
    probs = softmax(scaled[kept])
    before = np.cumsum(probs) - probs  # mass of the better tokens
    keep = (before < options.top_p) & (probs >= options.min_p * probs[0])
    out = np.zeros(len(scaled))
    out[kept[keep]] = softmax(scaled[kept[keep]])
    return out


def softmax(scaled: Array) -> Array:
    powers = np.exp(scaled - scaled.max())
    return powers / powers.sum()


def checked(logits: Array) -> Array:
    """Return the logits in float64, if one can choose among them."""
    wide = logits.astype(np.float64)
    if np.isnan(wide).any() or np.isposinf(wide).any():
        bad = int(np.flatnonzero(~(wide < np.inf))[0])
        raise InputError("logits", f"logit {bad} is {wide[bad]}, but should be finite")
    if not np.isfinite(wide).any():
        raise InputError("logits", "no logit is above -inf: there is nothing to choose from")
    return wide
