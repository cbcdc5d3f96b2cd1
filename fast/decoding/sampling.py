"""Choose the next token from its logits, as `reference.decoding.sampling` does, in one pass.

Differs from the reference: only the tokens that top-k leaves are ever sorted. A uniform that falls
within a rounding of a border between two tokens may choose the other one.
"""

import numpy as np

from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.tokenizer.sampling_options import SamplingOptions


def greedy(logits: Array) -> int:
    """Return the id of the largest logit, the lowest of equals."""
    token = int(logits.argmax())
    if not np.isfinite(logits[token]):  # NaN and +inf win an argmax; -inf wins where all are
        raise InputError("logits", f"logit {token} is {logits[token]}, but should be finite")
    return token


def sample(logits: Array, options: SamplingOptions, *, uniform: float) -> int:
    """Draw a token: the first whose cumulative probability, in order of ids, exceeds `uniform`."""
    if not 0 <= uniform < 1:
        raise ValueError(f"uniform={uniform}, but should be at least 0 and below 1")
    best = greedy(logits)
    if options.temperature == 0:
        return best
    kept = top_k(logits, options.top_k)  # in order of ids
    scaled = (logits[kept].astype(np.float64) - float(logits[best])) / options.temperature
    probs = np.exp(scaled)
    probs /= probs.sum()
    seen = probs >= options.min_p * probs.max()
    if options.top_p < 1:
        seen &= nucleus(logits[kept], probs, options.top_p)
    cumulative = np.cumsum(probs[seen])
    place = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    return int(kept[seen][place])


def top_k(logits: Array, count: int) -> Array:
    """Return the ids of the `count` largest logits in order of ids; of equals the lowest stay."""
    if not 0 < count < len(logits):
        return np.arange(len(logits))
    border = np.partition(logits, -count)[-count]
    above, level = np.flatnonzero(logits > border), np.flatnonzero(logits == border)
    return np.sort(np.concatenate([above, level[: count - len(above)]]))


def nucleus(logits: Array, probs: Array, top_p: float) -> Array:
    """Say which tokens are in the smallest best set whose mass reaches `top_p`.

    They are ranked by their logits: two that differ by less than exp can tell are no tie.
    """
    ranked = np.argsort(-logits.astype(np.float64), kind="stable")
    reached = np.searchsorted(np.cumsum(probs[ranked]), top_p, side="left")
    inside = np.zeros(len(probs), bool)
    inside[ranked[: reached + 1]] = True
    return inside
