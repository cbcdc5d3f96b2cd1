"""A store with room for a fixed number of tokens, made once."""

from copy import copy
from typing import Any, Self

from lockstep.reference.stores.held_positions import check_room
from lockstep.reference.stores.store import Array, Zeros, check_dtype, check_start


class Preallocated:
    """A buffer of (B, G, room, D). Every token is written to the slot that it is told."""

    def __init__(self, room: int, zeros: Zeros):
        self.zeros = zeros
        self.room = room
        self.buffer: Array | None = None
        self.held = 0
        self.shared = False  # whether a branch may still read the buffer

    def append(self, ops: Any, new: Array, start: int) -> Array:
        """Keep the first `start` tokens, put `new` behind them, and return all of them.

        Raises: InputError if there is not enough room, ValueError for a gap or another dtype.
        Nothing is overwritten then.
        """
        check_start(start, self.held)
        check_dtype(new, self.buffer)
        stop = start + new.shape[2]
        check_room(stop, self.room)
        buffer = self.own(ops, new, start)
        buffer[:, :, start:stop] = new
        self.buffer, self.held, self.shared = buffer, stop, False
        return buffer[:, :, :stop]

    def own(self, ops: Any, new: Array, start: int) -> Array:
        """Return a buffer that no branch reads, with the first `start` tokens in it."""
        past = self.buffer
        if past is not None and not self.shared:
            return past
        batch, groups, _, width = new.shape
        blank = self.zeros((batch, groups, self.room - start, width), new.dtype)
        return blank if past is None else ops.concatenate(past[:, :, :start], blank)

    def branch(self) -> Self:
        """Return a store of the same buffer. Whoever writes first copies it."""
        self.shared = True
        return copy(self)

    def arrays(self) -> list[Array]:
        """Return the buffer, empty room included."""
        return [] if self.buffer is None else [self.buffer]

    def state(self, count: int) -> list[Array]:
        """Return the first `count` tokens."""
        return [] if self.buffer is None else [self.buffer[:, :, :count]]

    def restore(self, ops: Any, arrays: list[Array]) -> None:
        """Take the tokens of another store."""
        for array in arrays:
            self.append(ops, array, 0)
