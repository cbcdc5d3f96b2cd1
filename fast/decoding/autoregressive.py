"""One token after another, each fed back, with one evaluation a token.

The loop is in `reference/scheduling/autoregressive.py`: it rounds nothing. Greedy tokens of MLX
have another one, `ahead.py`, which chooses the same.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from lockstep.fast.decoding import ahead, host
from lockstep.fast.decoding.sampling import greedy
from lockstep.reference.scheduling import autoregressive
from lockstep.reference.scheduling.feeding import Watch
from lockstep.reference.scheduling.host import Choose


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
) -> Iterator[int]:
    """Yield up to `max_tokens` new token ids; one of `stop` is yielded and ends it.

    The arguments are those of `reference.scheduling.autoregressive.generate`.
    Raises: InputError if there is no token to begin with.
    """
    cache = model.make_cache() if cache is None else cache
    told = {"max_tokens": max_tokens, "stop": stop, "cache": cache, "chunk": chunk, "watch": watch}
    if choose is greedy and model.runs_ahead and cache.steps_back:
        return ahead.generate(model, tokens, **told)
    return autoregressive.generate(model, tokens, **told, choose=choose, host=host)
