"""What TurboQuant's two sides have to share so that one reads the other's codes: tables, seeded.

Levels are data: the optimum of Lloyd and Max for a coordinate of a random unit vector, whose
density is proportional to (1 - x^2)^((d - 3) / 2). A test finds them again.
Source: Zandieh et al. 2025, arXiv:2504.19874, section 3.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

SEED = 2504  # of the rotation and the projection; in every file's version

LEVELS = {  # head width: for 1 to 4 bits, the positive levels; the others mirror them
    32: (
        (0.14215346,),
        (0.079801929, 0.26331941),
        (0.042851515, 0.1317561, 0.23246057, 0.36626824),
        (0.022329293, 0.067424203, 0.11389602, 0.16291948,
         0.21619001, 0.27656437, 0.34992452, 0.4534282),
    ),
    64: (
        (0.10012591,),
        (0.056514869, 0.18749685),
        (0.030469179, 0.093832263, 0.16616786, 0.26391393),
        (0.015919023, 0.048089783, 0.081311769, 0.11648675,
         0.15492553, 0.19885614, 0.25291373, 0.33079631),
    ),
    128: (
        (0.070661573,),
        (0.039991595, 0.13304152),
        (0.021604311, 0.066585608, 0.11813977, 0.18839719),
        (0.011302497, 0.034151571, 0.057772299, 0.082828457,
         0.11028837, 0.1418052, 0.18083596, 0.23766383),
    ),
    256: (
        (0.049916508,),
        (0.028288599, 0.094237782),
        (0.015297488, 0.04716671, 0.083765457, 0.13385429),
        (0.0080083742, 0.024200878, 0.040949197, 0.058732108,
         0.078249314, 0.10069801, 0.1285882, 0.16941044),
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Tables:
    """For heads of one width: what turns them, what projects residuals, and the levels by bits.

    `before` and `after` (D,) are signs around a Walsh-Hadamard transform. `projection` (D, D) has
    independent normal entries.
    """

    before: np.ndarray
    after: np.ndarray
    projection: np.ndarray

    @property
    def width(self) -> int:
        return len(self.before)

    def levels(self, bits: int) -> np.ndarray:
        """Return the 2^bits levels of a coordinate, rising, in float64."""
        positive = np.array(LEVELS[self.width][bits - 1])
        return np.concatenate([-positive[::-1], positive])


@lru_cache
def tables(width: int, seed: int = SEED) -> Tables:
    """Return the tables of a head width that `LEVELS` has. NumPy keeps this generator as it is."""
    draw = np.random.RandomState(seed + width)
    before, after = np.where(draw.randint(0, 2, (2, width)), 1.0, -1.0)
    return Tables(before, after, draw.standard_normal((width, width)))
