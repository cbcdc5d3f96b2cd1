"""Which token lies in which slot of a cache, found by its keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

EMPTY, STRANGE, PAD = -1, -2, -3  # what is in a slot, if no token of the text: zeros, or anything
CLOSE = 0.05  # how far from a token's own numbers, of their size, a slot may be
EQUAL = 1e-4  # how far tokens may be from a slot, and be equal
AT_ONCE = 2**22  # distances that are held at once


def distances(found: np.ndarray, right: np.ndarray) -> Iterator[np.ndarray]:
    """Yield how far each slot is from each token, of the token's size: (B, some of S, T)."""
    slots, tokens = (
        one.swapaxes(1, 2).reshape(len(one), one.shape[2], one.shape[1] * one.shape[3])
        for one in (found, right)
    )
    tokens = tokens.astype(np.float64)
    size = np.square(tokens).sum(axis=-1)[:, None, :]
    some = max(AT_ONCE // max(size.size, 1), 1)
    for begin in range(0, slots.shape[1], some):
        each = slots[:, begin : begin + some].astype(np.float64)
        far = np.square(each).sum(axis=-1)[:, :, None] + size - 2 * each @ tokens.swapaxes(1, 2)
        with np.errstate(all="ignore"):
            yield np.sqrt(np.maximum(far, 0) / size)


@dataclass(frozen=True)
class Content:
    """What the slots of one row hold, (S,): tokens by their numbers, EMPTY, STRANGE or PAD.

    What lies behind the last token, and behind as many slots as there were tokens (`end`), is room
    that nobody reads.
    """

    slots: tuple[int, ...]
    end: int = 0

    @property
    def tokens(self) -> list[int]:
        return [one for one in self.slots if one >= 0]

    @property
    def before(self) -> tuple[int, ...]:
        """The slots up to that of the last token."""
        last = max((place for place, one in enumerate(self.slots) if one >= 0), default=-1)
        return self.slots[: last + 1]

    @property
    def empty(self) -> int:
        return self.before.count(EMPTY)

    @property
    def strange(self) -> int:
        return self.slots[: max(len(self.before), self.end)].count(STRANGE)

    def is_right(self, needed: Sequence[int], *, ordered: bool) -> bool:
        """Say whether all needed tokens are there, once each, and in order where that counts."""
        tokens = self.tokens
        kept = len(set(tokens)) == len(tokens) and set(needed) <= set(tokens)
        in_order = not ordered or (tokens == sorted(tokens) and not self.empty)
        return kept and in_order and not self.strange


def contents(
    far: Iterable[np.ndarray], zeros: np.ndarray, known: np.ndarray, close: float
) -> list[Content]:
    """Find what is in the slots: `far` yields (B, some of S, T), how far they are from each token.

    `zeros` (B, S) is where nothing is, `known` (B, T) are tokens of the text, not padding.
    """
    fitting: list[list[np.ndarray]] = [[] for _ in zeros]
    for some in far:
        for row, one in enumerate(np.where(known[:, None, :], some, np.inf)):
            fitting[row] += [alike(slot, close) for slot in one]
    found = []
    for tokens, empty, real in zip(fitting, zeros, known, strict=True):
        slots = each_its_own(tokens)
        slots = np.where(empty & (slots == STRANGE), EMPTY, slots)
        pads = np.append(~real, np.zeros(max(len(slots) - len(real), 0), bool))[: len(slots)]
        slots = np.where(pads & (slots < 0), PAD, slots)
        found.append(Content(tuple(int(one) for one in slots), known.shape[1]))
    return found


def alike(far: np.ndarray, close: float) -> np.ndarray:
    """Return the tokens that a slot may hold: the nearest one, and those that are nearly equal."""
    nearest = far.min()
    if not nearest <= close:
        return np.empty(0, int)
    return np.flatnonzero(far <= min(2 * nearest + EQUAL, close))


def each_its_own(tokens: Sequence[np.ndarray]) -> np.ndarray:
    """Give each slot one of the tokens that it may hold, and no token twice if that can be.

    Of equal ones the last slot gets the last token: what is dropped is dropped from the front.
    """
    slots, used = np.full(len(tokens), STRANGE), set()
    choices = [place for place, some in enumerate(tokens) if len(some) > 1]
    for place, some in enumerate(tokens):
        if len(some) == 1:
            slots[place] = some[0]
            used.add(int(some[0]))
    for place in reversed(choices):
        free = (int(one) for one in tokens[place][::-1] if int(one) not in used)
        slots[place] = next(free, tokens[place][-1])
        used.add(int(slots[place]))
    return slots
