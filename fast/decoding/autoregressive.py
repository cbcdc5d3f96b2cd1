"""One token after another, each fed back, with one evaluation a token."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from lockstep.fast.decoding import sampling
from lockstep.fast.model import Model
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.errors import InputError

Watch = Callable[[str], None]
Choose = Callable[[np.ndarray], int]


def generate(
    model: Model,
    tokens: Sequence[int],
    *,
    max_tokens: int,
    stop: Collection[int],
    choose: Choose,
    cache: Any = None,
    watch: Watch | None = None,
) -> Iterator[int]:
    """Yield up to `max_tokens` new token ids; one of `stop` is yielded and ends it.

    `choose` takes the last token's logits (V,) in NumPy; `sampling.greedy` is not asked, since
    the backend finds the largest where the logits are.
    `cache` is an empty one of `model.make_cache`; without it, the default one is made.
    `watch` is told the name of each stage of a forward pass, as it is done.
    Raises: InputError if there is no token to begin with.
    """
    if not len(tokens):
        raise InputError(model.checkpoint.path, "the prompt has no tokens, but should have one")
    pick = partial(largest, model) if choose is sampling.greedy else partial(chosen, model, choose)
    cache, new = model.make_cache() if cache is None else cache, list(tokens)
    for _ in range(max_tokens):
        token = pick(last_logits(model, new, cache, watch)[0, 0])
        yield token
        if token in stop:
            return
        new = [token]


def last_logits(model: Model, tokens: list[int], cache: Any, watch: Watch | None) -> Array:
    """Run one step a stage at a time; return the logits of its last token, (1, 1, V)."""
    for name, value in model.stages([tokens], cache=cache, last_only=True):
        if watch is not None:
            watch(name)
        logits = value
    return logits


def largest(model: Model, logits: Array) -> int:
    """Find the largest logit on the device; token and logit come over in one evaluation."""
    backend = model.backend
    token, value = backend.argmax(logits), logits.max()
    backend.evaluate(token, value)
    if not np.isfinite(float(value)):
        raise InputError("logits", f"logit {int(token)} is {float(value)}, but should be finite")
    return int(token)


def chosen(model: Model, choose: Choose, logits: Array) -> int:
    """Bring the logits over, which computes them, and choose there."""
    return choose(model.backend.host(logits).astype(np.float32, copy=False))
