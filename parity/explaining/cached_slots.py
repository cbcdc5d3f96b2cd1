"""Which token lies in which slot of a cache, found by its keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EMPTY, STRANGE, PAD = -1, -2, -3  # what is in a slot, if no token of the text: zeros, or anything
CLOSE = 0.05  # how far from a token's own numbers, of their size, a slot may be
Shape = tuple[int, ...]


def laid_out(x: np.ndarray, batch: int, counts: Sequence[int], width: int) -> np.ndarray | None:
    """Return a cache as (B, heads, S, D), None if no axes are heads and their width.

    `counts` are the numbers of heads that there may be, the right one first.
    """
    if x.ndim == 3 and x.shape[0] == batch and x.shape[2] in [n * width for n in counts]:
        return x.reshape(*x.shape[:2], -1, width).swapaxes(1, 2)
    x = x[None] if x.ndim == 3 and batch == 1 else x
    if x.ndim != 4 or x.shape[0] != batch or x.shape[3] != width:
        return None
    for count in counts:
        if x.shape[1] == count:
            return x
        if x.shape[2] == count:
            return x.swapaxes(1, 2)
    return None


def repeated(x: np.ndarray, groups: int) -> str:
    """Say what lies in the heads of a cache that has one for each query head.

    "each": every key head as often as queries read it; "again": all of them, one after another;
    "zeros": nothing behind them; "": anything else.
    """
    times = x.shape[1] // groups
    first, rest = x[:, :groups], x[:, groups:]
    if not rest.any():
        return "zeros"
    if np.array_equal(x, np.repeat(x[:, ::times], times, axis=1)):
        return "each"
    return "again" if np.array_equal(x, np.tile(first, (1, times, 1, 1))) else ""


def unmixed(x: np.ndarray) -> np.ndarray:
    """Return (B, G, S, D) that was written as (B, S, G, D)."""
    batch, groups, slots, width = x.shape
    return x.reshape(batch, slots, groups, width).swapaxes(1, 2)


def distances(found: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return how far each slot is from each token, of the token's size: (B, S, T)."""
    slots, tokens = (
        one.swapaxes(1, 2).reshape(len(one), one.shape[2], -1).astype(np.float64)
        for one in (found, right)
    )
    size = np.square(tokens).sum(axis=-1)[:, None, :]
    far = np.square(slots).sum(axis=-1)[:, :, None] + size - 2 * slots @ tokens.swapaxes(1, 2)
    with np.errstate(all="ignore"):
        return np.sqrt(np.maximum(far, 0) / size)


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


def contents(far: np.ndarray, zeros: np.ndarray, known: np.ndarray, close: float) -> list[Content]:
    """Find what is in the slots: `far` (B, S, T) to each token, `zeros` (B, S) where nothing is.

    `known` (B, T) are the tokens of the text, not what fills up. Of two tokens that are alike, the
    one is taken that a slot is the place of.
    """
    far = np.where(known[:, None, :], far, np.inf)
    found = []
    for row, empty, real in zip(far, zeros, known, strict=True):
        nearest = row.argmin(axis=1)
        own = np.arange(len(row))
        here = own[own < row.shape[1]]
        nearest[here] = np.where(row[here, here] <= close, here, nearest[here])
        slots = np.where(row[own, nearest] <= close, nearest, STRANGE)
        slots = np.where(empty & (slots == STRANGE), EMPTY, slots)
        pads = np.append(~real, np.zeros(max(len(row) - len(real), 0), bool))[: len(row)]
        slots = np.where(pads & (slots < 0), PAD, slots)
        found.append(Content(tuple(int(one) for one in slots), far.shape[2]))
    return found
