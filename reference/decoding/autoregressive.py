"""One token after another, each fed back."""

from collections.abc import Callable, Collection, Iterator, Sequence

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.model import Model
from lockstep.reference.shapes import Array

Choose = Callable[[Array], int]


def generate(
    model: Model,
    tokens: Sequence[int],
    *,
    max_tokens: int,
    stop: Collection[int],
    choose: Choose,
) -> Iterator[int]:
    """Yield up to `max_tokens` new token ids; one of `stop` is yielded and ends it.

    `choose` takes the last token's logits (V,) and returns an id: `sampling.greedy`, or
    `sampling.sample` with its uniforms.
    Raises: InputError if there is no token to begin with.
    """
    if not len(tokens):
        raise InputError(model.checkpoint.path, "the prompt has no tokens, but should have one")
    cache, new = model.make_cache(), list(tokens)
    for _ in range(max_tokens):
        logits = model.forward([new], cache=cache, last_only=True)  # (1, 1, V)
        token = choose(logits[0, 0])
        yield token
        if token in stop:
            return
        new = [token]
