"""A dump that went through text: its numbers have few decimals, or few digits.

`print` and `np.round` leave so many decimals, `%g` and C++'s streams so many digits in all, and the
port computed with none of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lockstep.parity.explaining.conventions.stored import WIDE, Store, everywhere, store_coarsely
from lockstep.parity.explaining.searching.trial import Trial

MOST = 6  # decimals or digits: float32 has seven digits itself
COARSE = 4.0  # steps of float32 that one of the text has, for a number to tell them apart
ENOUGH = 64  # numbers that tell
SAMPLED, A_TENSOR = 24, 512  # tensors that are looked at, and numbers of each
SAID = "its values have {text}, as after printing: what was rounded off counts as noise"


@dataclass(frozen=True)
class Decimals:
    """So many places behind the point."""

    places: int

    def step(self, value: np.ndarray) -> np.ndarray:
        return np.full(value.shape, 10.0**-self.places, WIDE)

    def rounded(self, value: np.ndarray) -> np.ndarray:
        return np.round(value.astype(np.float64), self.places).astype(WIDE)

    def __str__(self) -> str:
        return f"{self.places} decimals at most"


@dataclass(frozen=True)
class Digits:
    """So many digits from the first that is not 0."""

    count: int

    def step(self, value: np.ndarray) -> np.ndarray:
        return self.exact_step(value).astype(WIDE)

    def rounded(self, value: np.ndarray) -> np.ndarray:
        step = self.exact_step(value)
        return (np.round(value.astype(np.float64) / step) * step).astype(WIDE)

    def exact_step(self, value: np.ndarray) -> np.ndarray:
        known = np.isfinite(value) & (value != 0)
        size = np.where(known, np.abs(value, dtype=np.float64), 1.0)
        return 10.0 ** (np.floor(np.log10(size)) - self.count + 1)

    def __str__(self) -> str:
        return f"{self.count} digits at most"


STORES = (*map(Decimals, range(1, MOST + 1)), *map(Digits, range(2, MOST + 1)))


def read_decimals(trial: Trial) -> Iterator[str]:
    """Say so if a float32 port's values went through text, and judge them as that from now on."""
    if trial.dtype != WIDE or trial.also:
        return
    store = written_with(some_numbers(trial))
    if store is not None:
        store_coarsely(trial, everywhere(store))
        yield SAID.format(text=store)


def some_numbers(trial: Trial) -> np.ndarray:
    """Return numbers from all over the dump, as float32 holds them."""
    numbers = sorted(trial.dumped)
    found = [np.zeros(0, WIDE)]
    for number in numbers[:: max(len(numbers) // SAMPLED, 1)]:
        value = trial.dumped[number]
        if value.dtype.kind == "f":
            flat = value.reshape(-1)
            found.append(flat[:: max(flat.size // A_TENSOR, 1)].astype(WIDE))
    return np.concatenate(found)


@np.errstate(all="ignore")  # a broken port may hold anything
def written_with(value: np.ndarray) -> Store | None:
    """Return the coarsest text that all of the numbers went through, None if there is none."""
    value = value[np.isfinite(value) & (value != 0)]
    found = [store for store in STORES if keeps(store, value)]
    return max(found, key=lambda store: float(np.median(store.step(value))), default=None)


def keeps(store: Store, value: np.ndarray) -> bool:
    """Say whether numbers are as they are stored, where float32 could hold finer ones."""
    telling = value[store.step(value) >= COARSE * np.spacing(np.abs(value))]
    return telling.size >= ENOUGH and np.array_equal(store.rounded(telling), telling)
