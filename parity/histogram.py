"""How the differences of a tensor are spread: a few dozen counts, whatever the tensor's size."""

from dataclasses import dataclass
from typing import Any

import numpy as np

BASE = 4  # a bin's upper end over its lower one
LOWEST, HIGHEST = -20, 8  # bins begin at 4^-20 = 9e-13; what lies beyond is in the last one there
CHUNK = 1 << 16  # numbers at a time, so that no copy of the tensor is made


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


def histogram(off: np.ndarray, size: float) -> Histogram | None:
    """Count the differences `off` over `size`; None where that is nothing to compare with."""
    if not np.isfinite(size) or size <= 0:
        return None
    total, zero, not_finite = np.zeros(HIGHEST - LOWEST, np.int64), 0, 0
    flat = off.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        part = np.abs(flat[start : start + CHUNK])
        known = np.isfinite(part)
        not_finite += int(part.size - np.count_nonzero(known))
        part = part[known & (part > 0)]
        zero += int(np.count_nonzero(known)) - part.size
        with np.errstate(over="ignore", under="ignore"):
            exponents = np.frexp(np.clip(part / size, BASE**LOWEST, BASE**HIGHEST))[1] - 1  # of 2
        bins = np.clip(exponents // 2, LOWEST, HIGHEST - 1) - LOWEST
        total += np.bincount(bins, minlength=len(total))
    filled = np.flatnonzero(total)
    first, last = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
    return Histogram(zero, first + LOWEST, tuple(map(int, total[first:last])), not_finite)
