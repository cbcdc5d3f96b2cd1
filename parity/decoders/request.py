"""What a decoder is given, and what it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lockstep.reference.scheduling.sampling_options import SamplingOptions


def decoding(model: Any, name: str) -> Any:
    """Return `decoding.NAME` of the package that a model is of."""
    if model.runs_on == "reference":
        return import_module(f"lockstep.reference.decoding.{name}")
    return import_module(f"lockstep.fast.decoding.{name}")


@dataclass
class Request:
    """One text that is to be gone on with.

    `tokens` is the whole text so far; `cache` may hold its first tokens already, as a chat's does.
    One of `stop` is made and ends it. `uniforms` gives the random numbers. `chunk` is how many
    tokens of the prompt go through the model at a time, None all. `watch` is told the name of each
    stage of a forward pass. `prompt_is_read` is to be called when the prompt's logits are computed;
    who does not is taken to mean the first token.
    """

    model: Any
    tokens: list[int]
    max_tokens: int
    stop: Collection[int]
    sampling: SamplingOptions
    uniforms: Iterator[float]
    cache: Any
    chunk: int | None = None
    watch: Callable[[str], None] | None = None
    prompt_is_read: Callable[[], None] = lambda: None

    @property
    def new(self) -> list[int]:
        """The tokens that the cache does not hold yet."""
        return self.tokens[self.cache.positions.length :]


class Decoder(Protocol):
    """A way of making tokens. `beyond` is how many more than the text a cache has room for.

    `in_order` says that the cache holds tokens in the order of the text, and can be gone on from.
    `from_prompt` is how many tokens come out of the prompt's own pass: 1, or 0. `ends` are texts of
    tokens that end a text beside the model's own, where its tokenizer has them.
    """

    beyond: int
    in_order: bool
    from_prompt: int
    ends: tuple[str, ...]

    def tokens(self, request: Request) -> Iterator[int]:
        """Yield up to `max_tokens` new ids, as they are made. The counts begin anew."""
        ...

    def forget(self) -> None:
        """Begin the next text as if it were the first: what was read of the last is not kept."""
        ...

    def counts(self) -> dict[str, Any]:
        """Return what the last text's making was like, for the JSON: its "name", and more."""
        ...

    def said(self) -> str:
        """Return the same for a person, one phrase for the line at the end; "" for nothing."""
        ...
