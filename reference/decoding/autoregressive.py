"""One token after another, each fed back."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model
from lockstep.reference.shapes import Array

Watch = Callable[[str], None]
Choose = Callable[[Array], int]


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

    `choose` takes the last token's logits (V,) and returns an id: `sampling.greedy`, or
    `sampling.sample` with its uniforms.
    `cache` is an empty one of `model.make_cache`; without it, the default one is made.
    `watch` is told the name of each stage of a forward pass, as it is done.
    Raises: InputError if there is no token to begin with.
    """
    if not len(tokens):
        raise InputError(model.checkpoint.path, "the prompt has no tokens, but should have one")
    cache, new = model.make_cache() if cache is None else cache, list(tokens)
    for _ in range(max_tokens):
        logits = last_logits(model, new, cache, watch)
        token = choose(logits[0, 0])
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
