"""Which texts are in flight together, and which come next. No arithmetic."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True)
class Prompt:
    """A text to go on with: its ids, what ends it, and what chooses its tokens.

    `choose` takes logits (V,) and may have a memory: each text needs one of its own.
    """

    tokens: list[int]
    max_tokens: int
    stop: Collection[int]
    choose: Callable[[Any], int]


class Made(NamedTuple):
    """A token of the text whose prompt came as number `text`; `last` if no more will come."""

    text: int
    token: int
    last: bool


class Rows(Protocol):
    """A batch of texts that a model goes on with."""

    def read(self, prompt: Prompt) -> tuple[int, Any]:
        """Read a prompt by itself; return its first new token, and its cache."""
        ...

    def join(self, cache: Any) -> None:
        """Give a text that was read the next row."""
        ...

    def step(self, tokens: list[int], prompts: list[Prompt]) -> list[int]:
        """Feed each row its last token; return the next ones."""
        ...

    def leave(self, row: int) -> None:
        """Forget a row; the last row moves there."""
        ...


@dataclass
class Flying:
    """A text in flight: its number, its last token, and how many may still come."""

    text: int
    prompt: Prompt
    token: int
    left: int


def in_flight(prompts: Iterable[Prompt], rows: Rows, *, slots: int) -> Iterator[Made]:
    """Yield the tokens of all texts as they are made, `slots` texts at a time.

    A prompt is taken when there is a slot for it, so there may be endlessly many. After a text's
    last token its slot is the next prompt's. Raises: ValueError for a text of no tokens.
    """
    coming, flying = enumerate(prompts), list[Flying]()
    while True:
        while len(flying) < slots and (found := next(coming, None)) is not None:
            one, cache = begun(*found, rows)
            if not one.left:
                yield Made(one.text, one.token, True)
                continue
            rows.join(cache)
            flying.append(one)
            yield Made(one.text, one.token, False)
        if not flying:
            return
        tokens = rows.step([one.token for one in flying], [one.prompt for one in flying])
        for one, token in zip(flying, tokens, strict=True):
            one.token, one.left = token, 0 if token in one.prompt.stop else one.left - 1
        made = [Made(one.text, one.token, not one.left) for one in flying]
        for row in reversed(range(len(flying))):
            if not flying[row].left:
                rows.leave(row)
                flying[row] = flying[-1]
                flying.pop()
        yield from made


def begun(number: int, prompt: Prompt, rows: Rows) -> tuple[Flying, Any]:
    """Read a prompt and make its first token."""
    if prompt.max_tokens < 1:
        raise ValueError(f"max_tokens={prompt.max_tokens}, but should be 1 or more")
    token, cache = rows.read(prompt)
    left = 0 if token in prompt.stop else prompt.max_tokens - 1
    return Flying(number, prompt, token, left), cache
