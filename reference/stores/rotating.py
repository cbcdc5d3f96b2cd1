"""A store whose slots are used again: what a layer can no longer see makes room for new tokens."""

from copy import copy
from typing import Any, Self

import numpy as np

from lockstep.reference.consecutive import runs
from lockstep.reference.stores.growing import roomy
from lockstep.reference.stores.ring import Move
from lockstep.reference.stores.store import Array, Zeros, check_dtype, check_shape


class Rotating:
    """A buffer of (B, G, room, D), in the order of its `Ring`. It grows up to `size`."""

    def __init__(self, size: int, zeros: Zeros):
        self.size, self.zeros = size, zeros
        self.buffer: Array | None = None
        self.used = 0
        self.shared = False  # whether a branch may still read the buffer

    def place(self, ops: Any, new: Array, move: Move) -> Array:
        """Put new tokens where the ring says; return all that are held. They may be overwritten.

        Raises: ValueError for another dtype, batch, number of heads or width, or if a step was left
        out. Nothing is written then.
        """
        if self.used != move.past:
            raise ValueError(f"new tokens at {move.past}, but the cache holds {self.used}")
        check_dtype(new, self.buffer)
        check_shape(new, self.buffer)
        if move.before is not None:
            buffer = self.gathered(ops, new, move.before, move.behind)
        else:
            buffer = self.with_room(ops, new, move)
            buffer[:, :, move.at : move.at + new.shape[2]] = new
        self.buffer, self.used, self.shared = buffer, move.total, False
        return buffer[:, :, : move.total]

    def gathered(self, ops: Any, new: Array, before: np.ndarray, behind: np.ndarray) -> Array:
        """Return a new buffer: some of the slots, the new tokens, and some others."""
        held = self.buffer
        assert held is not None  # a ring that has no slots gathers none
        parts = [held[:, :, a:b] for a, b in runs(before)] + [new]
        parts += [held[:, :, a:b] for a, b in runs(behind)]
        whole = parts[0]
        for part in parts[1:]:
            whole = ops.concatenate(whole, part)
        return whole

    def with_room(self, ops: Any, new: Array, move: Move) -> Array:
        """Return a buffer of its own for `move.total` tokens, with the ones held in it."""
        past = self.buffer
        if past is not None and past.shape[2] >= move.total and not self.shared:
            return past
        stay = 0 if past is None else min(self.used, move.total)
        room = max(move.total, min(self.size, roomy(move.total))) - stay
        batch, groups, _, width = new.shape
        blank = self.zeros((batch, groups, room, width), new.dtype)
        return blank if past is None else ops.concatenate(past[:, :, :stay], blank)

    def branch(self) -> Self:
        """Return a store of the same buffer. Whoever writes first copies it."""
        self.shared = True
        return copy(self)

    def arrays(self) -> list[Array]:
        """Return the buffer, empty room included."""
        return [] if self.buffer is None else [self.buffer]

    def state(self, count: int) -> list[Array]:
        """Return all slots that are in use, whatever `count` is: the ring knows who is in them."""
        return [] if self.buffer is None else [self.buffer[:, :, : self.used]]

    def restore(self, ops: Any, arrays: list[Array]) -> None:
        """Take the slots of another store."""
        for array in arrays:
            self.place(ops, array, Move(0, array.shape[2]))
