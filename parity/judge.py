"""Is this tap right, given what the port fed it? One number: own error over noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.parity.metrics import difference, rms


@dataclass(frozen=True)
class Limits:
    """The largest ratios that a right port shows: over many rows, and in a single one.

    They stand above everything that `python -m lockstep.parity.noise.calibrate` measures on right
    ports, and far below what a fault does; docs/parity/how-a-divergence-is-judged.md has both.
    """

    whole: float
    row: float

    def over(self, rows: int) -> float:
        """Return the limit for a tap of `rows` rows: a few are as uncertain as one."""
        return self.whole + (self.row - self.whole) / max(rows, 1)


LIMITS = {"float64": Limits(3.0, 9.0), "float32": Limits(3.0, 9.0)}
HALF = Limits(2.0, 4.0)
ROUNDING = 0.29  # the root mean square of one rounding, in steps of the last bit


@dataclass(frozen=True)
class Judgement:
    """Errors and noise are root mean squares over that of the right result, as `rms_rel` is."""

    own_error: float
    noise: float
    ratio: float
    row_ratio: float
    passed: bool
    first_bad: tuple[int, ...] | None


def judge(
    port: np.ndarray, centre: np.ndarray, ways: Sequence[np.ndarray], dtype: np.dtype
) -> Judgement:
    """Hold the port's own error against the spread of the legal ways around the float64 replay.

    The last axis is a row; the noise of each is floored, since a few ways sample it poorly.
    """
    limits = LIMITS.get(dtype.name, HALF)
    own = difference(port, centre)
    noise = row_noise(centre, ways, dtype)  # (..., 1)
    error_rows = np.sqrt(np.mean(own**2, axis=-1, keepdims=True)) if own.size else own
    with np.errstate(divide="ignore", invalid="ignore"):
        row_ratio = float(np.max(np.where(error_rows == 0, 0, error_rows / noise), initial=0.0))
        ratio = rms(error_rows) / rms(noise) if rms(error_rows) else 0.0
    size = rms(centre) or 1.0
    passed = ratio <= limits.over(error_rows.size) and row_ratio <= limits.row
    return Judgement(
        own_error=rms(own) / size,
        noise=rms(noise) / size,
        ratio=ratio,
        row_ratio=row_ratio,
        passed=passed,
        first_bad=None if passed else first_beyond(own, noise * limits.row),
    )


def row_noise(centre: np.ndarray, ways: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Return the noise of each row: what the ways show, at least a rounding of the result."""
    power = [np.mean(difference(way, centre) ** 2, axis=-1, keepdims=True) for way in ways]
    size = np.mean(np.square(centre, dtype=np.float64), axis=-1, keepdims=True)
    shown = np.mean(power, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        usual = np.nanmedian(np.where(size > 0, shown / size, np.nan)) if (size > 0).any() else 0.0
    step = ROUNDING * float(np.finfo(np.float32).eps if dtype.itemsize > 2 else half_step(dtype))
    floor = np.maximum(0.5 * usual, step**2) * size
    return np.sqrt(np.maximum(shown, floor))


def half_step(dtype: np.dtype) -> float:
    return 2.0**-10 if dtype == np.float16 else 2.0**-7


def first_beyond(own: np.ndarray, allowed: np.ndarray) -> tuple[int, ...] | None:
    """Return the first index, in reading order, whose error is beyond what is allowed there."""
    bad = np.argwhere(~(np.abs(own) <= allowed))
    return tuple(int(i) for i in bad[0]) if len(bad) else None
