"""A prompt on its way into a model: whole, or in chunks."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.checkpoint.rope_scaling import steady_length
from lockstep.reference.scheduling.common_prefix import common_prefix
from lockstep.reference.scheduling.host import Host

Watch = Callable[[str], None]


def check_prompt(model: Any, tokens: Sequence[int]) -> None:
    """Raises: InputError if there is no token to begin with."""
    if not len(tokens):
        raise InputError(model.checkpoint.path, "the prompt has no tokens, but should have one")


def check_chunk(chunk: int | None) -> None:
    """Raises: InputError for chunks of no tokens, with which nothing would ever be read."""
    if chunk is not None and chunk < 1:
        raise InputError("chunk", f"{chunk}, but should be 1 or more tokens")


def fed(
    model: Any, tokens: list[int], cache: Any, chunk: int | None, watch: Watch | None, host: Host
) -> list[int]:
    """Feed whole chunks of the prompt while more is left, for their keys and values alone.

    Returns the last chunk, or what is left for it. A prompt that must not be read in parts is left
    whole. Each chunk is computed before the next, or all of them would be in memory at once.
    Raises: InputError for chunks of no tokens.
    """
    check_chunk(chunk)
    if beyond_steady(model, cache.positions.length + len(tokens)):
        return tokens
    while chunk is not None and len(tokens) > chunk:
        keep(model, tokens[:chunk], cache, watch)
        host.computed(model, cache)
        tokens = tokens[chunk:]
    return tokens


def keep(model: Any, tokens: Sequence[int], cache: Any, watch: Watch | None = None) -> None:
    """Append tokens to the cache. Their logits, the last stage, are not computed."""
    stages = model.stages([list(tokens)], cache=cache)
    for name, _ in islice(stages, model.config.num_hidden_layers + 1):
        if watch is not None:
            watch(name)


def last_logits(
    model: Any, tokens: Sequence[int], cache: Any, watch: Watch | None, *, rows: int = 1
) -> Any:
    """Run one step a stage at a time; return the logits of its last tokens, (rows, V)."""
    return last_of(model.stages([list(tokens)], cache=cache, last_only=rows == 1), watch)[0, -rows:]


def last_of(stages: Iterable[tuple[str, Any]], watch: Watch | None) -> Any:
    """Return the last stage's value, which the head makes; `watch` is told each stage's name."""
    last = None
    for name, value in stages:
        if watch is not None:
            watch(name)
        last = value
    assert last is not None
    return last


def beyond_steady(model: Any, length: int) -> bool:
    """Say whether a text of so many tokens must not be read in parts."""
    steady = steady_length(model.config)
    return steady is not None and length > steady


def still_good(held: Sequence[int], tokens: Sequence[int], steady: int | None) -> int:
    """Return how many of the tokens that a cache holds can be kept for another text.

    Those that both begin with; but not the last of `tokens`, whose logits are wanted. None if
    either has more than `steady` tokens, `steady_length`: a long text's keys may be turned as
    its length asked for, and would be wrong in a shorter one too.
    """
    if steady is not None and max(len(held), len(tokens)) > steady:
        return 0
    return max(0, min(common_prefix(held, tokens), len(tokens) - 1))
