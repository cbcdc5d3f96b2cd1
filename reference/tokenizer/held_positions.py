"""Where the tokens that a cache holds stand: whole numbers, so both backends share them."""

from copy import copy
from typing import Any, Self

import numpy as np

from lockstep.reference.checkpoint.errors import InputError

PADDING = -1  # the position of a token that nobody sees


class HeldPositions:
    """The position of every held token, (B, S); padding stands at -1.

    `first` is the first of them that a layer with a sliding `window` can still see. `room` is how
    many can be held, None as many as come.
    """

    def __init__(self, window: int | None = None, room: int | None = None) -> None:
        self.array: np.ndarray | None = None
        self.window, self.room, self.first = window, room, 0

    @property
    def length(self) -> int:
        """How many tokens are held, padding included."""
        return 0 if self.array is None else self.array.shape[1]

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
        """Note the positions of new tokens, (B, L); return those of all, (B, S).

        Raises: InputError if there is no room for them, or a sliding layer would have to see what
        it has dropped. Nothing is noted then.
        """
        check_room(self.length + positions.shape[1], self.room)
        if self.window is not None:
            self.first = self.first_seen(positions, self.window)
        held = [] if self.array is None else [self.array]
        self.array = np.concatenate([*held, positions], axis=1)
        return self.array

    def first_seen(self, positions: np.ndarray, window: int) -> int:
        """Return the first held token that one of the new ones sees, or how many are held."""
        if self.array is None or not positions.shape[1]:
            return self.first
        lowest = np.where(positions < 0, np.iinfo(np.int64).max, positions).min(axis=1)
        seen = (self.array >= 0) & (lowest[:, None] - self.array < window)
        places = np.flatnonzero(seen.any(axis=0))
        if len(places) and places[0] < self.first:
            what = f"token {places[0]} is needed again, but sliding layers have dropped it"
            raise InputError("cache", what)
        return int(places[0]) if len(places) else self.length

    def trim(self, count: int) -> None:
        """Forget the last `count` tokens of every row. Raises: ValueError if fewer are held."""
        if not 0 <= count <= self.length:
            raise ValueError(f"{count} tokens to forget, but the cache holds {self.length}")
        if self.array is not None:
            self.array = self.array[:, : self.length - count]

    def branch(self) -> Self:
        """Return the same positions, to be gone on from apart: arrays are never written to."""
        return copy(self)


def check_room(count: int, room: int | None) -> None:
    """Refuse to hold more tokens than there is room for. Raises: InputError with both numbers."""
    if room is not None and count > room:
        raise InputError("cache", f"{count} tokens, but room was made for {room}")


def check_dtype(new: Any, held: Any) -> None:
    """Refuse to write one dtype into a buffer of another, which would cast. Raises: ValueError."""
    if held is not None and new.dtype != held.dtype:
        raise ValueError(f"new.dtype={new.dtype}, but the cache holds {held.dtype}")


def check_start(start: int, held: int) -> None:
    """Refuse to leave a gap before new tokens. Raises: ValueError if `start` is beyond `held`."""
    if not 0 <= start <= held:
        raise ValueError(f"new tokens at {start}, but the cache holds {held}")
