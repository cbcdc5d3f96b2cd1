"""How examples are drawn: what Hypothesis offers, in the words of the families.

Families are plain functions of a `Draw`, so they need no Hypothesis and a test may draw its own.
Choices stand in the order in which they should be shrunk: the simplest one first.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from lockstep.parity.conformance.case import Given
from lockstep.parity.conformance.values import FILLS, recipe

# What overflows or vanishes in an exponential, a square or a sum, and what must spread.
FINITE = (-0.0, 1e4, -1e4, 88.8, -88.8, 1e30, -1e30)
INFINITE = (float("inf"), float("-inf"))
NAN = (float("nan"),)
ANY = NAN + FINITE + INFINITE + NAN  # a port that swallows NaN is soon found
# Around the powers of two at which kernels change: vector widths, tiles, loops.
WIDTHS = (1, 2, 3, 4, 5, 8, 16, 31, 32, 33, 64, 65, 127, 128, 129, 255, 256, 257, 512)
COUNTS = (1, 2, 3, 0, 7, 8, 9, 16, 17, 31, 32, 33)


class Source(Protocol):
    """What one example draws from."""

    def whole(self, low: int, high: int) -> int: ...

    def one_of(self, choices: Sequence[Any]) -> Any: ...


class Draw:
    """Draws sizes, options and arrays in one dtype."""

    def __init__(self, source: Source, dtype: np.dtype):
        self.whole, self.one_of, self.dtype = source.whole, source.one_of, dtype

    def flag(self) -> bool:
        return self.one_of((False, True))

    def option(self, choices: Sequence[Any]) -> Given:
        value = self.one_of(choices)
        return Given(value, repr(value))

    def array(
        self,
        shape: tuple[int, ...],
        *,
        fills: Sequence[str] = FILLS,
        spikes: Sequence[float] = (),
    ) -> Given:
        """Draw an array: how it is filled, and at most two numbers that hurt."""
        size, hurt = int(np.prod(shape)), {}
        if spikes and size:
            for _ in range(self.whole(0, 2)):
                hurt[self.whole(0, size - 1)] = self.one_of(spikes)
        return recipe(shape, self.one_of(fills), self.whole(0, 99), hurt, self.dtype)


Family = dict[str, Callable[[Draw], dict[str, Given]]]
