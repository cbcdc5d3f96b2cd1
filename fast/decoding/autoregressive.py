"""One token after another, each fed back, with one evaluation a token."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from lockstep.fast.decoding import sampling
from lockstep.fast.model import Model
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_scaling import steady_length

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
    chunk: int | None = None,
    watch: Watch | None = None,
) -> Iterator[int]:
    """Yield up to `max_tokens` new token ids; one of `stop` is yielded and ends it.

    `choose` takes the last token's logits (V,) in NumPy; `sampling.greedy` is not asked, since
    the backend finds the largest where the logits are.
    `cache` is one of `model.make_cache`, and `tokens` go on from what it holds; without it, the
    default one is made. `chunk` is how many tokens of the prompt are fed at a time, None all.
    `watch` is told the name of each stage of a forward pass, as it is done.
    Raises: InputError if there is no token to begin with.
    """
    if not len(tokens):
        raise InputError(model.checkpoint.path, "the prompt has no tokens, but should have one")
    pick = partial(largest, model) if choose is sampling.greedy else partial(chosen, model, choose)
    if not max_tokens:
        return
    cache, new = model.make_cache() if cache is None else cache, list(tokens)
    new = fed(model, new, cache, chunk, watch)
    for _ in range(max_tokens):
        token = pick(last_logits(model, new, cache, watch)[0, 0])
        yield token
        if token in stop:
            return
        new = [token]


def fed(
    model: Model, tokens: list[int], cache: Any, chunk: int | None, watch: Watch | None
) -> list[int]:
    """Feed whole chunks of the prompt while more is left, for their keys and values alone.

    Returns the last chunk, or what is left for it. The head is not run: it is the last stage. A
    prompt that must not be read in parts is left whole. Each chunk is computed before the next, or
    all of their graphs would be in memory at once.
    """
    steady = steady_length(model.config)
    if steady is not None and cache.positions.length + len(tokens) > steady:
        return tokens
    while chunk is not None and len(tokens) > chunk:
        stages = model.stages([tokens[:chunk]], cache=cache, last_only=True)
        for name, _ in islice(stages, model.config.num_hidden_layers + 1):
            if watch is not None:
                watch(name)
        model.backend.evaluate(*cache.arrays())
        tokens = tokens[chunk:]
    return tokens


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
