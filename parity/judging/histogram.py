"""How the differences of a tensor are spread: a few dozen counts, whatever the tensor's size."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

BASE = 4  # a bin's upper end over its lower one
LOWEST, HIGHEST = -20, 8  # bins begin at 4^-20 = 9e-13; what lies beyond is in the last one there
WIDTH = HIGHEST - LOWEST
CHUNK = 1 << 15  # numbers at a time: what is made of them stays in a core's cache
FRACTION, EXPONENT = 52, 2047  # of a float64: how many bits, and all bits set
MIDDLE, LAST = 512, 1024  # the bins of 1, and of what is infinite or no number

EMPTY = np.zeros(WIDTH + 2, np.int64)  # a tally of nothing


@dataclass(frozen=True)
class Histogram:
    """Counts of |difference| over the root mean square of the truth.

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


@np.errstate(all="ignore")  # infinities over a size, and what overflows there
def tallied(off: np.ndarray, size: float) -> np.ndarray:
    """Count differences, in float64, over `size`: in each bin, then the zeros and the not finite.

    Tallies of parts add up to that of the whole.
    """
    total = np.bincount(halved_exponents(off / size), minlength=LAST + 1)
    zero = off.size - int(np.count_nonzero(off))
    not_finite = off.size - int(np.count_nonzero(np.isfinite(off)))
    counts = total[MIDDLE + LOWEST : MIDDLE + HIGHEST]
    counts[0] += int(total[: MIDDLE + LOWEST].sum()) - zero
    counts[-1] += int(total[MIDDLE + HIGHEST :].sum()) - not_finite
    return np.array([*counts, zero, not_finite])


def histogram_of(tallies: Iterable[np.ndarray], size: float) -> Histogram | None:
    """Add tallies up. None where there is nothing to compare with; then none is asked for."""
    if not is_scale(size):
        return None
    total = sum(tallies, EMPTY)
    filled = np.flatnonzero(total[:WIDTH])
    first, last = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
    zero, not_finite = (int(one) for one in total[WIDTH:])
    return Histogram(zero, first + LOWEST, tuple(map(int, total[first:last])), not_finite)


def is_scale(size: float) -> bool:
    return bool(np.isfinite(size)) and size > 0


def halved_exponents(x: np.ndarray) -> np.ndarray:
    """Return for 4^k <= |x| < 4^(k + 1) the number k + MIDDLE, from the bits of a float64.

    A float64 holds 1023 above its exponent of 2 in the 11 bits behind its sign. One more, halved,
    is 512 above the exponent of 4.
    """
    return ((x.view(np.int64) >> FRACTION & EXPONENT) + 1) >> 1
