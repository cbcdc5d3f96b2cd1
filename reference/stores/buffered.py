"""Tokens in a buffer with room behind them: most are written in place, the rest not copied."""

from abc import ABC, abstractmethod
from copy import copy
from typing import Any, Self

from lockstep.reference.stores.store import Array, Zeros, check_dtype, check_shape, check_start


class Buffered(ABC):
    """A buffer of (B, G, room, D), of which the first tokens are held."""

    def __init__(self, zeros: Zeros):
        self.zeros = zeros
        self.buffer: Array | None = None
        self.held = 0
        self.shared = False  # whether a branch may still read the buffer

    @abstractmethod
    def room_for(self, stop: int) -> int:
        """Return how many tokens a new buffer has room for if it is to hold `stop` of them.

        Raises: InputError if there may not be so many.
        """

    def append(self, ops: Any, new: Array, start: int) -> Array:
        """Keep the first `start` tokens, put `new` behind them, and return all of them.

        Raises: ValueError for a gap, another dtype or heads of another shape, InputError for too
        many. Nothing is written then.
        """
        buffer, stop = self.own_for(ops, new, start), start + new.shape[2]
        buffer[:, :, start:stop] = new
        self.buffer, self.held, self.shared = buffer, stop, False
        return buffer[:, :, :stop]

    def reserve(self, ops: Any, new: Array, start: int) -> Array:
        """Keep the first `start` tokens, make room for `new` behind them, and return the buffer.

        Whoever asks writes tokens like `new` there, and then says so by `reach`; until then they
        are not held, as `append` finds out. Raises: as `append` does.
        """
        buffer = self.own_for(ops, new, start)
        self.buffer, self.held, self.shared = buffer, start, False
        return buffer

    def reserve_again(self, buffer: Array, start: int) -> bool:
        """Do what `reserve` would for a token, if it would return this buffer; tell whether so."""
        own = self.buffer is buffer and not self.shared
        if not own or self.held < start or buffer.shape[2] <= start:
            return False
        self.held = start
        return True

    def reach(self, stop: int) -> None:
        """Hold what was written to the room that `reserve` made: `stop` tokens in all."""
        self.held = stop

    def own_for(self, ops: Any, new: Array, start: int) -> Array:
        """Return a buffer that no branch reads, with room and the first `start` tokens in it."""
        check_start(start, self.held)
        check_dtype(new, self.buffer)
        check_shape(new, self.buffer)
        past, stop = self.buffer, start + new.shape[2]
        if past is not None and past.shape[2] >= stop and not self.shared:
            return past
        batch, groups, _, width = new.shape
        room = self.room_for(stop)
        blank = self.zeros((batch, groups, room - start, width), new.dtype)
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
