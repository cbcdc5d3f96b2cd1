"""The simplest correct store: every step makes a new array of all that is held."""

from copy import copy
from typing import Any, Self

from lockstep.reference.stores.store import Array, check_start


class Concatenating:
    """One array, (B, G, S, D), that is never written to: branches can share it."""

    def __init__(self) -> None:
        self.held: Array | None = None

    def append(self, ops: Any, new: Array, start: int) -> Array:
        """Keep the first `start` tokens, put `new` behind them, and return all of them."""
        held = self.held
        check_start(start, 0 if held is None else held.shape[2])
        if held is not None and start < held.shape[2]:
            held = held[:, :, :start]
        whole = new if held is None else ops.concatenate(held, new)
        self.held = whole
        return whole

    def branch(self) -> Self:
        """Return a store of the same array."""
        return copy(self)

    def arrays(self) -> list[Array]:
        """Return what is held."""
        return [] if self.held is None else [self.held]

    def state(self, count: int) -> list[Array]:
        """Return the first `count` tokens."""
        return [] if self.held is None else [self.held[:, :, :count]]

    def restore(self, ops: Any, arrays: list[Array]) -> None:
        """Take the tokens of another store."""
        for array in arrays:
            self.append(ops, array, 0)
