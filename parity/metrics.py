"""How far one tensor is from another, in figures that are always defined or said not to be.

All are computed in float64 on values scaled by their largest, so that nothing overflows.
"""

from dataclasses import dataclass, field

import numpy as np

from lockstep.parity.histogram import Histogram, histogram


@dataclass(frozen=True)
class Distance:
    """`rms_rel` is the root mean square of the difference over that of the truth; `gain` is the
    factor that fits best. A figure that is not defined (0/0) is None."""

    max_abs: float
    rms_rel: float | None
    cosine: float | None
    gain: float | None
    histogram: Histogram | None = field(default=None, compare=False)


def difference(port: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return port - truth in float64; equal infinities differ by nothing, NaN by NaN."""
    port, truth = port.astype(np.float64, copy=False), truth.astype(np.float64, copy=False)
    with np.errstate(invalid="ignore"):
        off = port - truth
    if not np.isfinite(off).all():
        off = np.where(port == truth, 0.0, off)
    return off


def rms(x: np.ndarray) -> float:
    """Return the root mean square, 0 of nothing."""
    peak = float(np.abs(x).max(initial=0.0))
    if peak == 0 or not np.isfinite(peak):
        return peak
    return peak * float(np.sqrt(np.mean((x / peak) ** 2)))


@np.errstate(all="ignore")  # a broken port may hold anything
def distance(port: np.ndarray, truth: np.ndarray) -> Distance:
    """Measure a port's tensor against the truth; both have one shape."""
    off = difference(port, truth)
    port, truth = port.astype(np.float64).ravel(), truth.astype(np.float64).ravel()
    size, own = rms(truth), rms(port)
    overlap = float((truth / (size or 1)) @ (port / (own or 1))) / max(truth.size, 1)
    return Distance(
        max_abs=float(np.abs(off).max(initial=0.0)),
        rms_rel=rms(off) / size if size else None,
        cosine=overlap if size and own else None,
        gain=overlap * own / size if size else None,
        histogram=histogram(off, size),
    )
