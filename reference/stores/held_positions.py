"""Where the tokens that a cache holds stand: whole numbers, so both backends share them."""

from collections.abc import Mapping
from copy import copy
from typing import Self

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.stores.ring import PADDING, Ring


class HeldPositions:
    """The position of every token that came, (B, S); padding stands at -1.

    `rings` say for each kind of layer that drops tokens which ones it still holds. `room` is how
    many can be held, None as many as come.
    """

    def __init__(self, rings: Mapping[str, Ring] | None = None, room: int | None = None) -> None:
        self.array: np.ndarray | None = None
        self.rings, self.room = dict(rings or {}), room

    @property
    def length(self) -> int:
        """How many tokens have come, padding included."""
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

        Raises: InputError if there is no room for them, or a layer would have to see what it has
        dropped. Nothing is noted then.
        """
        check_room(self.length + positions.shape[1], self.room)
        held = np.zeros((len(positions), 0), np.int64) if self.array is None else self.array
        self.rings = {kind: ring.after(held, positions) for kind, ring in self.rings.items()}
        self.array = np.concatenate([held, positions], axis=1)
        return self.array

    def trim(self, count: int) -> None:
        """Forget the last `count` tokens of every row.

        Raises: ValueError if fewer are held, InputError if a layer has dropped what the next token
        would see. Nothing is forgotten then.
        """
        if not 0 <= count <= self.length:
            raise ValueError(f"{count} tokens to forget, but the cache holds {self.length}")
        if self.array is None or not count:
            return
        left = self.array[:, : self.length - count]
        for ring in self.rings.values():
            ring.check(left, left.max(axis=1, initial=PADDING)[:, None] + 1)
        self.array = left

    def branch(self) -> Self:
        """Return the same positions, to be gone on from apart: arrays are never written to."""
        return copy(self)


def check_room(count: int, room: int | None) -> None:
    """Refuse to hold more tokens than there is room for. Raises: InputError with both numbers."""
    if room is not None and count > room:
        raise InputError("cache", f"{count} tokens, but room was made for {room}")
