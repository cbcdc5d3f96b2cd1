"""How far one tensor is from another, in figures that are always defined or said not to be.

All are computed in float64 on values scaled by their largest, so that nothing overflows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from lockstep.parity.judging.histogram import CHUNK, Histogram, counted


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
    """Measure a port's tensor against the truth; both have one shape.

    A part is looked at at a time, once for sums and once for the histogram, and where squares could
    overflow once before, for the largest values. So memory does not grow with the tensor.
    """
    wide = max(port.dtype.itemsize, truth.dtype.itemsize) > 4
    scales = [scale(peak) for peak in peaks_of(port, truth)] if wide else [1.0] * 3
    peaks, squares, across = np.zeros(3), np.zeros(3), 0.0
    for three in parts(port, truth):
        peaks = np.maximum(peaks, largest(three))
        scaled = [one / by for one, by in zip(three, scales, strict=True)] if wide else three
        squares += [one @ one for one in scaled]
        across += float(scaled[1] @ scaled[2])
    count = max(truth.size, 1)
    apart, size, own = map(root, peaks.tolist(), scales, (squares / count).tolist())
    overlap = across / count * (scales[1] / (size or 1)) * (scales[2] / (own or 1))
    return Distance(
        max_abs=float(peaks[0]),
        rms_rel=apart / size if size else None,
        cosine=overlap if size and own else None,
        gain=overlap * own / size if size else None,
        histogram=counted((three[0] for three in parts(port, truth)), size),
    )


def peaks_of(port: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the largest absolute values of difference, truth and port."""
    peaks = np.zeros(3)
    for three in parts(port, truth):
        peaks = np.maximum(peaks, largest(three))
    return peaks


def largest(three: Sequence[np.ndarray]) -> list[float]:
    return [float(np.abs(one).max(initial=0.0)) for one in three]


def parts(port: np.ndarray, truth: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield difference, truth and port in float64, a part at a time."""
    left, right = port.reshape(-1), truth.reshape(-1)
    for start in range(0, right.size, CHUNK):
        ours, theirs = (one[start : start + CHUNK].astype(np.float64) for one in (left, right))
        yield difference(ours, theirs), theirs, ours


def scale(peak: float) -> float:
    """Return what values are divided by before they are squared: nothing overflows then."""
    return float(peak) if peak and np.isfinite(peak) else 1.0


def root(peak: float, by: float, mean: float) -> float:
    """Return the root mean square of values whose squares, over that of `by`, have this mean."""
    return by * float(np.sqrt(mean)) if peak and np.isfinite(peak) else peak
