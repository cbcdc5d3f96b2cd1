"""What a port computed in float32, and stored as coarser numbers: what was rounded off is noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Evaluator
from lockstep.parity.graph.evaluator import Rewritten
from lockstep.reference.precision import dtype_named

WIDE = dtype_named("float32")
DRAWS = 6  # of what storing may have rounded off: a token's probabilities hang on few scores


class Store(Protocol):
    """A way to store float32 numbers coarsely."""

    def rounded(self, value: np.ndarray) -> np.ndarray:
        """Return the numbers that are stored for these."""
        ...

    def step(self, value: np.ndarray) -> np.ndarray:
        """Return how far apart stored numbers are, next to each of these; 0 where one is exact."""
        ...


Stores = Callable[[int], Store | None]  # how the value of a number is stored, None as computed


def store_coarsely(trial: Trial, stores: Stores) -> None:
    """Count what storing rounded off as noise, from now on."""
    trial.also = [partial(as_stored, stores=stores, draw=draw) for draw in range(DRAWS)]
    trial.held = WIDE
    trial.forget()


def store_as_computed(trial: Trial) -> None:
    """Take it that nothing was rounded off, from now on."""
    trial.also, trial.held = (), None
    trial.forget()


@dataclass(frozen=True)
class Finer(Mapping[int, np.ndarray]):
    """What a port may have had before it was stored: each number up to half a step off."""

    dumped: Mapping[int, np.ndarray]
    stores: Stores
    draw: int

    def __getitem__(self, number: int) -> np.ndarray:
        value, store = self.dumped[number], self.stores(number)
        if store is None or value.dtype.kind in "biu":
            return value
        rng = np.random.default_rng([self.draw, number])
        return finer(value.astype(WIDE), store, rng)

    def __contains__(self, number: object) -> bool:
        return number in self.dumped

    def __iter__(self) -> Iterator[int]:
        return iter(self.dumped)

    def __len__(self) -> int:
        return len(self.dumped)


@np.errstate(all="ignore")
def finer(value: np.ndarray, store: Store, rng: np.random.Generator) -> np.ndarray:
    """Move stored numbers by up to half of their step; zeros and no numbers stay."""
    moved = value + store.step(value) * rng.uniform(-0.5, 0.5, value.shape).astype(WIDE)
    return np.where((value == 0) | ~np.isfinite(value), value, moved)


def as_computed(number: int) -> None:
    """Say that nothing was rounded off."""


def everywhere(store: Store) -> Stores:
    """Say that every value is stored in one way."""
    return lambda number: store


@dataclass
class AsStored(Evaluator):
    """Computes in float32, and rounds what is asked for as it is stored."""

    stores: Stores = as_computed

    def target(self, number: int, rewritten: Rewritten | None = None) -> np.ndarray:
        value, store = super().target(number, rewritten), self.stores(number)
        return value if store is None else store.rounded(value)


def as_stored(trial: Trial, rows: int | None, *, stores: Stores, draw: int) -> Evaluator:
    dumped = Finer(trial.dumped, stores, draw)
    read, seen = trial.read, trial.seen
    return AsStored(trial.graph, trial.ops, WIDE, dumped, read, rows, seen, stores=stores)
