"""A store that drops what a sliding layer can no longer see."""

from copy import copy
from typing import Any, Self

from lockstep.fast.caches.concatenating import Concatenating
from lockstep.fast.shapes import Array, Keys, NewKeys


class Windowed:
    """The newest tokens in their order, (B, G, S, D). `first` is the number of the first one."""

    def __init__(self) -> None:
        self.store, self.first = Concatenating(), 0

    def drop(self, first: int, start: int) -> None:
        """Forget the tokens before `first`, and those from `start` on."""
        held = self.store.held
        kept = None if held is None else held[:, :, first - self.first : start - self.first]
        self.store, self.first = Concatenating(), first
        self.store.held = kept if first < start else None

    def append(self, ops: Any, new: NewKeys, start: int) -> Keys:
        """Put `new` behind the tokens before `start`, and return all that are left."""
        return self.store.append(ops, new, start - self.first)

    def branch(self) -> Self:
        """Return a store of the same array."""
        other = copy(self)
        other.store = self.store.branch()
        return other

    def arrays(self) -> list[Array]:
        """Return what is held."""
        return self.store.arrays()
