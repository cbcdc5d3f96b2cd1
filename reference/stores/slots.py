"""Texts of unequal length side by side, of which each may come and go: for a batch in flight."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.growing import roomy
from lockstep.reference.stores.ring import PADDING
from lockstep.reference.stores.store import Array, Zeros


class Slots:
    """Keys and values of up to `rows` texts, each layer's in one buffer (rows, G, room, D).

    The texts in flight have the first rows, in the order of `lengths`. A row that is read of by
    itself `join`s with its cache; whoever `leave`s has his row filled by the last one. To a model
    this is a cache, whose rows get one token each at a time. All tokens are kept, also those that
    a sliding layer no longer sees: its mask hides them. Behind its tokens each row in flight is 0:
    a NaN that another text has left there would spoil sums although it is hidden.
    """

    def __init__(self, rows: int, zeros: Zeros):
        self.rows, self.zeros = rows, zeros
        self.lengths: list[int] = []
        self.room = 0
        self.buffers: dict[tuple[int, int], Array] = {}  # by layer; 0 keys, 1 values
        self.positions = self  # where new tokens go is counted here

    def join(self, ops: Any, cache: Cache) -> None:
        """Take the text of a cache of one row into the next row. Raises: ValueError if all are
        taken."""
        if len(self.lengths) == self.rows:
            raise ValueError(f"all of {self.rows} rows are taken")
        length, row = cache.positions.length, len(self.lengths)
        self.make_room(ops, length + 1)
        for layer, pair in enumerate(cache.state()):
            for side, held in enumerate(pair):
                if held:  # a layer that shares another one's keys has none
                    buffer = self.buffer(layer, side, held[0])
                    buffer[row : row + 1, :, :length] = held[0]
                    buffer[row : row + 1, :, length:] = 0
        self.lengths.append(length)

    def leave(self, row: int) -> None:
        """Forget a row; the last one moves there."""
        last = len(self.lengths) - 1
        length = self.lengths[last]
        for buffer in self.buffers.values() if row != last else ():
            buffer[row : row + 1, :, :length] = buffer[last : last + 1, :, :length]
            buffer[row : row + 1, :, length:] = 0
        self.lengths[row] = length
        self.lengths.pop()

    def next(self, batch: int) -> np.ndarray:
        """Return where each row goes on, (B,). Raises: ValueError if another number is held."""
        if batch != len(self.lengths):
            raise ValueError(f"{batch} rows, but the cache holds {len(self.lengths)}")
        return np.array(self.lengths, np.int64)

    def extend(self, positions: np.ndarray) -> np.ndarray:
        """Note a token of each row, at (B, 1); return the positions of all, (B, S), padding at -1.

        Raises: ValueError for more than one token a row, or a place that is not the next.
        """
        if positions.tolist() != [[length] for length in self.lengths]:
            raise ValueError("each row takes its next token, and no other")
        self.lengths = [length + 1 for length in self.lengths]
        places = np.arange(max(self.lengths))
        return np.where(places < np.array(self.lengths)[:, None], places, PADDING)

    def update(self, ops: Any, layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Put a token of each row behind its others; return what all hold, (B, G, S, D)."""
        count, longest = len(self.lengths), max(self.lengths)
        self.make_room(ops, longest)
        held = []
        for side, new in enumerate((keys, values)):
            buffer = self.buffer(layer, side, new)
            buffer[list(range(count)), :, [length - 1 for length in self.lengths]] = new[:, :, 0]
            held.append(buffer[:count, :, :longest])
        return held[0], held[1]

    def reserve(self, ops: Any, layer: int, keys: Array, values: Array) -> None:
        """Return None, as a cache does whose rows do not all end at one token."""

    def keys_of(self, kind: str, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return where the keys stand that layers of this kind are given: all, (B, S)."""
        return keys

    def buffer(self, layer: int, side: int, like: Array) -> Array:
        if (layer, side) not in self.buffers:
            shape = (self.rows, like.shape[1], self.room, like.shape[3])
            self.buffers[layer, side] = self.zeros(shape, like.dtype)
        return self.buffers[layer, side]

    def make_room(self, ops: Any, tokens: int) -> None:
        """Let every row have room for so many tokens."""
        if tokens <= self.room:
            return
        room = roomy(tokens)
        for name, buffer in self.buffers.items():
            rows, groups, _, width = buffer.shape
            blank = self.zeros((rows, groups, room - self.room, width), buffer.dtype)
            self.buffers[name] = ops.concatenate(buffer, blank)
        self.room = room

    def arrays(self) -> Sequence[Array]:
        """Return the buffers, empty room included."""
        return list(self.buffers.values())
