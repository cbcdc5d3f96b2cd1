"""A store that grows in steps: most tokens are written in place, without copying the rest."""

from copy import copy
from typing import Any, Self

from lockstep.reference.stores.store import Array, Zeros, check_dtype, check_start

STEP = 256  # tokens of room that are added at a time


class Growing:
    """A buffer of (B, G, room, D), of which the first tokens are held."""

    def __init__(self, zeros: Zeros):
        self.zeros = zeros
        self.buffer: Array | None = None
        self.held = 0
        self.shared = False  # whether a branch may still read the buffer

    def append(self, ops: Any, new: Array, start: int) -> Array:
        """Keep the first `start` tokens, put `new` behind them, and return all of them.

        Raises: ValueError for a gap or another dtype. Nothing is written then.
        """
        check_start(start, self.held)
        check_dtype(new, self.buffer)
        stop = start + new.shape[2]
        buffer = self.with_room(ops, new, start, stop)
        buffer[:, :, start:stop] = new
        self.buffer, self.held, self.shared = buffer, stop, False
        return buffer[:, :, :stop]

    def with_room(self, ops: Any, new: Array, start: int, stop: int) -> Array:
        """Return a buffer of its own for at least `stop` tokens, with the first `start` in it."""
        buffer = self.buffer
        if buffer is not None and buffer.shape[2] >= stop and not self.shared:
            return buffer
        batch, groups, _, width = new.shape
        room = -(-stop // STEP) * STEP - start
        blank = self.zeros((batch, groups, room, width), new.dtype)
        return blank if buffer is None else ops.concatenate(buffer[:, :, :start], blank)

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
