"""A ring that is written token by token, and put in order for several tokens at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from lockstep.parity.faults.slots import Asked, Held


@dataclass
class Ring:
    """A ring of so many slots, as mlx-lm has it: the numbers of the tokens in them.

    The first slots that are `held` are not written again once it is full. If it is not `ordered`,
    several tokens at once find the slots as they lie, and take them for the last tokens in turn.
    """

    size: int
    held: int = 0
    ordered: bool = True
    slots: list[int] = field(default_factory=list)
    at: int = 0  # the slot that is written next

    def read(self, begin: int, end: int) -> dict[int, list[int]]:
        """Write the tokens of a pass; return what each of them sees."""
        if end - begin == 1 and self.slots:
            self.put(begin)
            return {begin: [*self.slots]}
        kept = [*self.slots[self.at :], *self.slots[: self.at]] if self.ordered else self.slots
        self.slots = [*kept[max(len(kept) - self.size + 1, 0) :], *range(begin, end)]
        self.at = len(self.slots)
        first = end - self.at  # the token that the first slot is taken for
        return {
            token: self.slots[max(token - self.size + 1 - first, 0) : token + 1 - first]
            for token in range(begin, end)
        }

    def put(self, token: int) -> None:
        """Write one token: behind the others, or over the oldest."""
        if len(self.slots) > self.size:
            self.slots, self.at = self.slots[-self.size :], self.size
        if len(self.slots) < self.size:
            self.slots.append(token)
            self.at = len(self.slots)
            return
        self.at = self.held if self.at >= self.size else self.at
        self.slots[self.at] = token
        self.at += 1


@lru_cache(maxsize=16)
def seen_in(edges: Sequence[int], size: int, held: int, ordered: bool) -> dict[int, list[int]]:
    """Return what each token of some passes finds in a ring."""
    ring, found = Ring(size, held, ordered), {}
    for begin, end in pairwise(edges):
        found |= ring.read(begin, end)
    return found


def rotating(*, held: int = 0, ordered: bool = True) -> Held:
    """See what such a ring holds."""

    def seen(asked: Asked) -> list[int] | None:
        if asked.window is None or held >= asked.window:
            return None
        return seen_in(asked.edges or edges_of(asked), asked.window, held, ordered)[asked.token]

    return seen


def edges_of(asked: Asked) -> tuple[int, ...]:
    """Return where passes begin and the last one ends, if all behind the prompt are of one token.

    The pass that is asked of may be of several.
    """
    before = range(asked.prompt, asked.begins)
    return tuple(sorted({0, *before, asked.begins, asked.ends}))


def by_calls(asked: Asked) -> Sequence[int] | None:
    """See in chunks of several tokens what would be seen if each one before had been one token."""
    if asked.ends - asked.begins == 1 or not asked.edges:
        return None
    moved = asked.token - asked.begins + counted_by_calls(asked.edges, asked.begins)
    if asked.window is None:
        return range(moved + 1)
    oldest = max(moved, asked.begins) - asked.window + 1
    return range(max(oldest, 0), moved + 1)


def counted_by_calls(edges: Sequence[int], begins: int) -> int:
    """Return the position of a pass, if each one behind the prompt moves on by 1."""
    return edges[1] + edges.index(begins) - 1 if begins else 0
