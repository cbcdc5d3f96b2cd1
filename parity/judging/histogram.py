"""How the differences of a tensor are spread: a few dozen counts, whatever the tensor's size.

What they are to be set against, the size of what is right, is known when all has been read. So
differences are first tallied by their upper bits, and no number is read twice: a tally has sixteen
steps from a power of two to the next. The size is rounded to such a step, at most 3 % off.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

BASE = 4  # a bin's upper end over its lower one
LOWEST, HIGHEST = -20, 8  # bins begin at 4^-20 = 9e-13; what lies beyond is in the last one there
WIDTH = HIGHEST - LOWEST
CHUNK = 1 << 15  # numbers at a time: what is made of them stays in a core's cache

SHIFT = 48  # the bits of a float64 that a tally looks at begin there: sign, exponent, and four more
STEPS = 16  # those four
MAGNITUDE = (1 << 63 - SHIFT) - 1  # without the sign
# A tally counts zeros, then by steps from the smallest float32 to twice its largest, where what is
# beyond goes to the ends, and what is not finite last.
BEFORE = (1023 - 149) * STEPS - 1
LAST = (1023 + 130) * STEPS - BEFORE
INFINITE = 2047 * STEPS

EMPTY = np.zeros(LAST + 1, np.int64)  # a tally of nothing


@dataclass(frozen=True)
class Histogram:
    """Counts of |difference| over the root mean square of the truth, rounded to 1/16 of its octave.

    `counts[i]` numbers lie in [4^(first + i), 4^(first + i + 1)); the bins at both ends of the
    scale hold what is beyond too. `zero` numbers do not differ, `not_finite` cannot be counted.
    """

    zero: int
    first: int
    counts: tuple[int, ...]
    not_finite: int

    def to_json(self) -> dict[str, Any]:
        return {"zero": self.zero, "first": self.first, "counts": [*self.counts],
                "not_finite": self.not_finite}  # fmt: skip


def tallied(off: np.ndarray) -> np.ndarray:
    """Tally differences, in float64. Tallies of parts add up to that of the whole."""
    steps = off.view(np.int64) >> SHIFT & MAGNITUDE
    places = np.clip(steps - BEFORE, 1, LAST - 1)
    places[steps >= INFINITE] = LAST
    places[off == 0] = 0
    return np.bincount(places, minlength=LAST + 1)


def histogram_of(tally: np.ndarray, size: float) -> Histogram | None:
    """Set a tally against a size. None where there is nothing to compare with."""
    if not is_scale(size):
        return None
    half = 1 << SHIFT - 1
    unit = int(np.float64(size).view(np.int64)) + half >> SHIFT
    bins = (np.arange(1, LAST) + BEFORE - unit) // (2 * STEPS) - LOWEST
    counts = np.bincount(np.clip(bins, 0, WIDTH - 1), tally[1:LAST], WIDTH)  # in float64: exact
    filled = np.flatnonzero(counts)
    first, last = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
    found = tuple(int(one) for one in counts[first:last])
    return Histogram(int(tally[0]), first + LOWEST, found, int(tally[LAST]))


def is_scale(size: float) -> bool:
    return bool(np.isfinite(size)) and size > 0
