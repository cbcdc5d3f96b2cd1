"""A cache for each rank, which all hold the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import numpy as np

from lockstep.reference.parallel.each import Each
from lockstep.reference.shapes import Array
from lockstep.reference.stores.cache import Cache
from lockstep.reference.stores.held_positions import HeldPositions


class EachCache:
    """What a `Cache` is to one rank. Where tokens stand is counted once, for all ranks."""

    def __init__(self, ranks: Sequence[Cache]) -> None:
        self.ranks = list(ranks)
        for one in self.ranks:
            one.positions = self.ranks[0].positions

    @property
    def positions(self) -> HeldPositions:
        return self.ranks[0].positions

    @property
    def name(self) -> str:
        return self.ranks[0].name

    @property
    def warnings(self) -> Sequence[str]:
        return self.ranks[0].warnings

    def update(self, ops: Any, layer: int, keys: Each, values: Each) -> tuple[Each, Each]:
        """Append the new keys and values of each rank; return what each one's layer holds."""
        new = zip(self.ranks, keys, values, strict=True)
        held = [cache.update(ops.one, layer, *pair) for cache, *pair in new]
        return Each(one for one, _ in held), Each(one for _, one in held)

    def reserve(self, ops: Any, layer: int, keys: Each, values: Each) -> None:
        """Return None: what ranks hold lies in no one buffer."""

    def keys_of(self, kind: str, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return self.ranks[0].keys_of(kind, queries, keys)

    def trim(self, count: int) -> None:
        self.ranks[0].trim(count)

    def branch(self) -> Self:
        other = copy(self)
        EachCache.__init__(other, [cache.branch() for cache in self.ranks])
        return other

    def arrays(self) -> list[Array]:
        return [array for cache in self.ranks for array in cache.arrays()]

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.ranks)
