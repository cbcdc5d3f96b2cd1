"""Where the tokens that a cache holds stand: whole numbers, so both backends share them."""

from collections.abc import Mapping
from copy import copy
from typing import Self

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores.ring import (
    FORGOTTEN,
    PADDING,
    Ring,
    lowest_of,
    needed_again,
)


class HeldPositions:
    """The positions of the tokens that came, (B, S); padding stands at -1.

    `numbers` (S,) are the tokens' own, in the order in which they came. `rings` say for each kind
    of layer that drops tokens which ones it still holds. Where every layer `forgets`, positions of
    what all have dropped are forgotten too, so that a long text takes no more than a short one.
    `room` is how many tokens can be held, None as many as come.
    """

    def __init__(
        self,
        rings: Mapping[str, Ring] | None = None,
        room: int | None = None,
        *,
        forgets: bool = False,
    ) -> None:
        self.array: np.ndarray | None = None
        self.numbers, self.length = np.zeros(0, np.int64), 0
        self.rings, self.room = dict(rings or {}), room
        # Of a ring of 1, even the last token may be gone: then nothing would say where to go on.
        self.forgets = forgets and all(ring.size > 1 for ring in self.rings.values())
        self.gone: np.ndarray | None = None  # (B,) the highest position that was forgotten
        self.end_of_gone = 0  # one past the number of the last token that was forgotten

    def take(self, array: np.ndarray) -> None:
        """Hold what a file says, (B, S): positions of all tokens, or -2 for forgotten ones."""
        there = (array != FORGOTTEN).all(axis=0)
        self.array, self.numbers = array[:, there], np.flatnonzero(there)
        self.length = array.shape[1]
        if not there.all():
            self.end_of_gone = int(np.flatnonzero(~there)[-1]) + 1
            self.gone = np.array([highest_missing(row) for row in self.array])

    def whole(self) -> np.ndarray | None:
        """Return the positions of all tokens, (B, S), -2 for forgotten ones: as `take` takes it."""
        if self.array is None:
            return None
        array = np.full((len(self.array), self.length), FORGOTTEN)
        array[:, self.numbers] = self.array
        return array

    def at(self, numbers: np.ndarray) -> np.ndarray:
        """Return in which columns of `array` tokens stand that are there."""
        return np.searchsorted(self.numbers, numbers)

    def next(self, batch: int) -> np.ndarray:
        """Return where each row goes on: one past its highest position, (B,).

        Raises: ValueError if another number of rows is held.
        """
        if self.array is None:
            return np.zeros(batch, np.int64)
        if len(self.array) != batch:
            raise ValueError(f"{batch} rows, but the cache holds {len(self.array)}")
        return self.array.max(axis=1, initial=PADDING) + 1

    def extend(self, positions: np.ndarray) -> np.ndarray:
        """Note the positions of new tokens, (B, L); return those of all that are there, (B, S).

        Raises: InputError if there is no room for them, or a layer would have to see what it has
        dropped. Nothing is noted then.
        """
        stop = self.length + positions.shape[1]
        check_room(stop, self.room)
        held = np.zeros((len(positions), 0), np.int64) if self.array is None else self.array
        self.check(positions)
        come = self.numbers, self.length
        self.rings = {kind: ring.after(held, positions, *come) for kind, ring in self.rings.items()}
        self.array = np.concatenate([held, positions], axis=1)
        self.numbers = np.concatenate([self.numbers, np.arange(self.length, stop)])
        self.length = stop
        self.forget()
        return self.array

    def forget(self) -> None:
        """Forget the positions of tokens that no ring has."""
        if not self.forgets or self.array is None:
            return
        there = np.isin(self.numbers, np.concatenate([one.slots for one in self.rings.values()]))
        if there.all():
            return
        highest = self.array[:, ~there].max(axis=1)
        self.gone = highest if self.gone is None else np.maximum(self.gone, highest)
        self.end_of_gone = max(self.end_of_gone, int(self.numbers[~there][-1]) + 1)
        self.array, self.numbers = self.array[:, there], self.numbers[there]

    def check(self, new: np.ndarray) -> None:
        """Raise InputError if tokens at positions `new` would see a forgotten one."""
        if self.gone is None or not new.shape[1]:
            return
        near = lowest_of(new)[:, 0] - self.gone < max(ring.size for ring in self.rings.values())
        if (near & (self.gone >= 0)).any():
            raise needed_again(self.end_of_gone - 1)

    def trim(self, count: int) -> None:
        """Forget the last `count` tokens of every row.

        Raises: ValueError if fewer are held, InputError if a layer has dropped what the next token
        would see, or if the text would end before a token whose position is forgotten. Nothing is
        forgotten then.
        """
        if not 0 <= count <= self.length:
            raise ValueError(f"{count} tokens to forget, but the cache holds {self.length}")
        if self.array is None or not count:
            return
        stop = self.length - count
        left, numbers = self.array[:, self.numbers < stop], self.numbers[self.numbers < stop]
        if len(numbers) < stop < self.end_of_gone:
            raise needed_again(stop - 1)
        following = left.max(axis=1, initial=PADDING)[:, None] + 1
        if len(numbers) < stop:
            self.check(following)
        for ring in self.rings.values():
            ring.check(left, following, numbers)
        if len(numbers) == stop:
            self.gone, self.end_of_gone = None, 0
        self.array, self.numbers, self.length = left, numbers, stop

    def branch(self) -> Self:
        """Return the same positions, to be gone on from apart: arrays are never written to."""
        return copy(self)


def highest_missing(row: np.ndarray) -> int:
    """Return the highest position below a row's last that is not there, -1 if none is missing."""
    missing = np.setdiff1d(np.arange(row.max(initial=PADDING) + 1), row)
    return int(missing[-1]) if len(missing) else PADDING


def check_room(count: int, room: int | None) -> None:
    """Refuse to hold more tokens than there is room for. Raises: InputError with both numbers."""
    if room is not None and count > room:
        raise InputError("cache", f"{count} tokens, but room was made for {room}")
