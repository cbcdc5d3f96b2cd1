"""One token after another, each fed back."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from lockstep.reference.scheduling.feeding import Watch, check_prompt, fed, last_logits
from lockstep.reference.scheduling.host import Choose, Host, chosen


def generate(
    model: Any,
    tokens: Sequence[int],
    *,
    max_tokens: int,
    stop: Collection[int],
    choose: Choose,
    cache: Any = None,
    chunk: int | None = None,
    watch: Watch | None = None,
    host: Host,
) -> Iterator[int]:
    """Yield up to `max_tokens` new token ids; one of `stop` is yielded and ends it.

    `choose` takes the last token's logits (V,) in NumPy and returns an id: `sampling.greedy`, or
    `sampling.sample` with its uniforms.
    `cache` is one of `model.make_cache`, and `tokens` go on from what it holds; without it, the
    default one is made. `chunk` is how many tokens of the prompt are fed at a time, None all.
    `watch` is told the name of each stage of a forward pass, as it is done. `host` is the
    package's.
    Raises: InputError if there is no token to begin with.
    """
    check_prompt(model, tokens)
    if max_tokens < 1:
        return
    cache = model.make_cache() if cache is None else cache
    new = fed(model, list(tokens), cache, chunk, watch, host)
    for _ in range(max_tokens):
        logits = last_logits(model, new, cache, watch)
        new = chosen(host, model, logits, [choose])
        yield new[0]
        if new[0] in stop:
            return
