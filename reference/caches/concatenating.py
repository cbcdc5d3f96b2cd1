"""The simplest correct store: every step makes a new array of all that is held."""

from copy import copy
from typing import Any, Self

from lockstep.reference.shapes import Array, Keys, NewKeys
from lockstep.reference.tokenizer.held_positions import check_start


class Concatenating:
    """One array, (B, G, S, D), that is never written to: branches can share it."""

    def __init__(self) -> None:
        self.held: Array | None = None

    def append(self, ops: Any, new: NewKeys, start: int) -> Keys:
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
