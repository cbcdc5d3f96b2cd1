"""Is this tap right, given what the port fed it? Own error over noise, in three measures."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.parity.judging.metrics import difference, rms


@dataclass(frozen=True)
class Limits:
    """How large a ratio may be: over all, if all is one row, in the worst row, in the worst number.

    They stand above everything that `python -m lockstep.parity.noise.calibrate` measures on right
    ports, and far below what a fault does; docs/parity/how-a-divergence-is-judged.md has both.
    """

    whole: float
    single: float
    row: float
    cell: float

    def over(self, rows: int) -> float:
        """Return the limit for a tap of `rows` rows: a few are as uncertain as one."""
        return self.whole + (self.single - self.whole) / max(rows, 1)


WIDE = Limits(whole=2.0, single=5.0, row=8.0, cell=40.0)
HALF = Limits(whole=1.5, single=2.0, row=4.0, cell=12.0)
LIMITS = {"float64": WIDE, "float32": WIDE, "bfloat16": HALF, "float16": HALF}
EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
ROUNDING = 0.2  # the root mean square of one rounding over that of the values, in epsilons
SMALLEST = {"float64": 2.0**-1022, "float16": 2.0**-24}  # what may vanish; else float32's
FLOAT32_SMALLEST = 2.0**-126


@dataclass(frozen=True)
class Judgement:
    """Errors and noise are root mean squares over that of the right result, as `rms_rel` is."""

    own_error: float
    noise: float
    ratio: float
    row_ratio: float
    cell_ratio: float
    passed: bool
    first_bad: tuple[int, ...] | None


@np.errstate(all="ignore")  # a broken port may hold anything
def judge(
    port: np.ndarray, centre: np.ndarray, ways: Sequence[np.ndarray], dtype: np.dtype
) -> Judgement:
    """Hold the port's own error against what the legal ways show around the float64 replay.

    The last axis is a row. Every comparison is written so that NaN fails.
    """
    limits, own, right = LIMITS[dtype.name], difference(port, centre), finite(centre)
    different = {id(way): way for way in ways}.values()  # ways may share what they compute alike
    errors = [finite(difference(way, centre)) for way in different]
    noise = row_noise(errors, right, dtype)  # (..., 1)
    rows = row_rms(own)
    cells = over(np.abs(own), noise * cell_weight(errors, right, noise))
    ratio = float(over(np.array(rms(rows)), np.array(rms(noise))))
    row_ratio = float(np.max(over(rows, noise), initial=0.0))
    cell_ratio = float(np.max(cells, initial=0.0))
    passed = (
        ratio <= limits.over(rows.size) and row_ratio <= limits.row and cell_ratio <= limits.cell
    )
    size = rms(right) or 1.0
    return Judgement(
        own_error=rms(own) / size,
        noise=rms(noise) / size,
        ratio=ratio,
        row_ratio=row_ratio,
        cell_ratio=cell_ratio,
        passed=passed,
        first_bad=None if passed else worst_place(cells, limits.cell),
    )


def row_noise(errors: Sequence[np.ndarray], right: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the noise of each row: the largest that a way shows, but no less than a rounding.

    A single row samples its noise poorly, so 0.7 of what is usual for rows is a floor too.
    """
    shown = np.max([row_rms(error) for error in errors], axis=0)
    size = row_rms(right)
    usual = np.median(shown[size > 0] / size[size > 0]) if (size > 0).any() else 0.0
    rounding = ROUNDING * EPSILONS[dtype.name]
    smallest = SMALLEST.get(dtype.name, FLOAT32_SMALLEST)
    return np.maximum(np.maximum(shown, max(0.7 * usual, rounding) * size), rounding * smallest)


def cell_weight(errors: Sequence[np.ndarray], right: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return how much more than its row's noise a single number may be off, at least 1.

    Large numbers are off by more, and so are some columns: those of a large gain.
    """
    axes = tuple(range(right.ndim - 1))
    columns = [np.mean(np.square(over(error, noise)), axis=axes) for error in errors]
    weight = over(np.abs(right), row_rms(right))
    return np.maximum(weight, np.maximum(1.0, np.sqrt(np.max(columns, axis=0))), out=weight)


def over(error: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return error / noise, where no error is 0 whatever the noise."""
    quotient = error / noise
    return np.where(error == 0, 0.0, quotient) if np.isnan(quotient).any() else quotient


def finite(x: np.ndarray) -> np.ndarray:
    """Leave out what overflowed: that says nothing of how far a right port is off."""
    seen = np.isfinite(x)
    return x if seen.all() else np.where(seen, x, 0.0)


def row_rms(x: np.ndarray) -> np.ndarray:
    """Return the root mean square of each row, (..., N) -> (..., 1)."""
    return np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) if x.size else x[..., :1]


def worst_place(cells: np.ndarray, limit: float) -> tuple[int, ...] | None:
    """Return the first index, in reading order, beyond the limit; else the index that is worst."""
    if not cells.size:
        return None
    bad = np.flatnonzero(~(cells <= limit))
    flat = bad[0] if len(bad) else np.argmax(cells)
    return tuple(int(i) for i in np.unravel_index(flat, cells.shape))
