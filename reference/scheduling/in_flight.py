"""Which texts are in flight together, and which come next. No arithmetic."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

from lockstep.reference.checkpoint.errors import InputError


@dataclass(frozen=True)
class Prompt:
    """A text to go on with: its ids, what ends it, and what chooses its tokens.

    `choose` takes logits (V,) and may have a memory: each text needs one of its own.
    Raises: ValueError where no token may be made.
    """

    tokens: Sequence[int]
    max_tokens: int
    stop: Collection[int]
    choose: Callable[[Any], int]

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens}, but should be 1 or more")


class Made(NamedTuple):
    """A token of the text whose prompt came as number `text`; `last` if no more will come.

    A text that cannot be gone on with ends with an `error` in the place of a token, which is None.
    """

    text: int
    token: int | None
    last: bool
    error: InputError | None = None


class Rows(Protocol):
    """A batch of texts that a model goes on with."""

    def read(self, prompts: Sequence[Prompt]) -> Iterable[tuple[int, tuple[int, Any] | InputError]]:
        """Read prompts; yield of each, in any order, its place among them and what came of it.

        That is its first new token and its cache, or the error that says why there are none.
        """
        ...

    def join(self, cache: Any) -> None:
        """Give a text that was read the next row."""
        ...

    def refused(self, row: int, token: int) -> InputError | None:
        """Say why a row cannot be fed a token, if it cannot."""
        ...

    def step(self, tokens: list[int], prompts: list[Prompt]) -> Sequence[int | InputError]:
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
    error: InputError | None = None

    def take(self, found: int | InputError) -> "Flying":
        """Go on with a token, or end with an error."""
        if isinstance(found, InputError):
            self.error, self.left = found, 0
        else:
            self.token = found
            self.left = 0 if found in self.prompt.stop else self.left - 1
        return self

    def made(self) -> Made:
        token = self.token if self.error is None else None
        return Made(self.text, token, not self.left, self.error)


def in_flight(prompts: Iterable[Prompt], rows: Rows, *, slots: int) -> Iterator[Made]:
    """Yield the tokens of all texts as they are made, `slots` texts at a time.

    Prompts are taken when there are slots for them, so there may be endlessly many; those that
    wait together are read together. After a text's last token its slot is the next prompt's. Slots
    are filled once a step: prompts that end at once, however many, keep no text from going on.
    Raises: InputError if there are no slots.
    """
    if slots < 1:
        raise InputError("slots", f"{slots}, but should be 1 or more")
    coming, flying = enumerate(prompts), list[Flying]()
    while True:
        new = list(islice(coming, slots - len(flying)))
        if new:
            yield from begun(new, rows, flying)
        elif not flying:
            return
        yield from dropped(rows, flying)
        yield from stepped(rows, flying)


def begun(new: Sequence[tuple[int, Prompt]], rows: Rows, flying: list[Flying]) -> Iterator[Made]:
    """Read prompts and make their first tokens; those that may have more are then in flight."""
    for place, found in rows.read([prompt for _, prompt in new]):
        number, prompt = new[place]
        token, cache = (found, None) if isinstance(found, InputError) else found
        one = Flying(number, prompt, -1, prompt.max_tokens).take(token)
        if one.left:
            rows.join(cache)
            flying.append(one)
        yield one.made()


def dropped(rows: Rows, flying: list[Flying]) -> Iterator[Made]:
    """End the texts whose last token cannot be fed."""
    for row, one in enumerate(flying):
        error = rows.refused(row, one.token)
        if error is not None:
            yield one.take(error).made()
    left(rows, flying)


def stepped(rows: Rows, flying: list[Flying]) -> list[Made]:
    """Feed every text its last token."""
    if not flying:
        return []
    tokens = rows.step([one.token for one in flying], [one.prompt for one in flying])
    made = [one.take(found).made() for one, found in zip(flying, tokens, strict=True)]
    left(rows, flying)
    return made


def left(rows: Rows, flying: list[Flying]) -> None:
    """Let the texts go that have no more tokens to come."""
    for row in reversed(range(len(flying))):
        if not flying[row].left:
            rows.leave(row)
            flying[row] = flying[-1]
            flying.pop()
