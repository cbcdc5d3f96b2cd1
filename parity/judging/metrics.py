"""How far one tensor is from another, in figures that are always defined or said not to be.

All are computed in float64 on values scaled by their largest, so that nothing overflows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

import numpy as np

from lockstep.parity.dumps.crew import Crew
from lockstep.parity.dumps.parts import Parts, parts_of
from lockstep.parity.judging import compiled
from lockstep.parity.judging.compiled import Code
from lockstep.parity.judging.histogram import CHUNK, EMPTY, Histogram, histogram_of, tallied

LARGEST = np.finfo(np.float64).max
ROW = 1 << 12  # numbers of a product that no BLAS gives to several threads


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


@dataclass(frozen=True)
class Sums:
    """Of difference, truth and port: the largest, and the squares over that of a scale, added up;
    truth * port, over both scales; the tally of differences over the octave of truth's scale."""

    peaks: np.ndarray
    squares: np.ndarray
    across: float
    tally: np.ndarray

    def __add__(self, more: "Sums") -> "Sums":
        peaks = np.maximum(self.peaks, more.peaks)
        return Sums(peaks, self.squares + more.squares, self.across + more.across,
                    self.tally + more.tally)  # fmt: skip


NOTHING = Sums(np.zeros(3), np.zeros(3), 0.0, EMPTY)


@np.errstate(all="ignore")  # a broken port may hold anything
def distance(
    port: np.ndarray | Parts, truth: np.ndarray | Parts, *, crew: Crew | None = None
) -> Distance:
    """Measure a port's tensor against the truth; both have one shape.

    A piece is looked at at a time, once, and where squares could overflow once before, for the
    largest values. So memory does not grow with the tensor.
    An infinity that both have counts as 0 on both sides: figures are those of the other numbers.
    Without a crew this thread does it alone. Machine code rounds sums in another order.
    """
    port, truth = parts_of(port), parts_of(truth)
    crew = crew or Crew(1, compiled=False)
    code = compiled.machine_code(port.dtype, truth.dtype) if crew.compiled else None
    wide = max(port.dtype.itemsize, truth.dtype.itemsize) > 4
    peaks = reduce(np.maximum, crew.each(peaks_of, port, truth)) if wide else np.zeros(3)
    scales = [scale(peak) for peak in peaks]
    found = sum(crew.each(partial(sums_of, scales, code), port, truth), NOTHING)
    squares = (found.squares / max(truth.size, 1)).tolist()
    apart, size, own = map(root, found.peaks.tolist(), scales, squares)
    across = found.across / max(truth.size, 1)
    overlap = across * (scales[1] / (size or 1)) * (scales[2] / (own or 1))
    return Distance(
        max_abs=float(found.peaks[0]),
        rms_rel=apart / size if size else 0.0 if not apart and is_any(truth) else None,
        cosine=overlap if size and own else None,
        gain=overlap * own / size if size else None,
        histogram=histogram_of(found.tally, size / octave(scales[1])),
    )


@np.errstate(all="ignore")  # which each thread has of its own
def sums_of(
    scales: Sequence[float], code: Code | None, port: np.ndarray, truth: np.ndarray
) -> Sums:
    """Add up the squares of a piece, and tally its differences."""
    if code is not None:
        seen = compiled.seen_by(code, port, truth)
        if np.isfinite(seen.squares).all():  # else the largest difference may be no number
            peaks = np.array([seen.most, *np.sqrt(seen.squares[1:])])
            return Sums(peaks, seen.squares, seen.across, seen.tally)
    found = NOTHING
    for three in parts(port, truth):
        scaled = [over(one, by) for one, by in zip(three, scales, strict=True)]
        squares = np.array([dot(one, one) for one in scaled])
        tally = tallied(within(three[0], octave(scales[1])))
        found += Sums(largest(three), squares, dot(scaled[1], scaled[2]), tally)
    return found


def over(x: np.ndarray, by: float) -> np.ndarray:
    return x if by == 1 else x / by


def within(x: np.ndarray, by: float) -> np.ndarray:
    """Return x over `by`; what is finite stays so, however small `by` is."""
    scaled = over(x, by)
    if by < 1:
        np.clip(scaled, -LARGEST, LARGEST, out=scaled, where=np.isfinite(x))
    return scaled


def dot(x: np.ndarray, y: np.ndarray) -> float:
    """Add up x * y. A long product would go to the BLAS's threads, which fight with those here."""
    full = x.size // ROW * ROW
    rows = np.vecdot(x[:full].reshape(-1, ROW), y[:full].reshape(-1, ROW))
    return float(rows.sum() + x[full:] @ y[full:])


@np.errstate(all="ignore")  # as for the sums
def peaks_of(port: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the largest absolute values of difference, truth and port."""
    return reduce(np.maximum, map(largest, parts(port, truth)), np.zeros(3))


def largest(three: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([np.abs(one).max(initial=0.0) for one in three])


def parts(port: np.ndarray, truth: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield difference, truth and port in float64, a part at a time that a core's cache holds.

    Where both are one infinity both are made 0: else any other number would be near beside it.
    """
    for start in range(0, truth.size, CHUNK):
        ours, theirs = (one[start : start + CHUNK].astype(np.float64) for one in (port, truth))
        off = ours - theirs
        if not np.isfinite(off).all():
            shared = np.isinf(theirs) & (ours == theirs)
            off[shared] = ours[shared] = theirs[shared] = 0.0
        yield off, theirs, ours


def is_any(tensor: Parts) -> bool:
    """Say whether there is more than zeros; a mask has infinities beside them."""
    return any(np.count_nonzero(piece) for piece in tensor.pieces())


def scale(peak: float) -> float:
    """Return what values are divided by before they are squared: nothing overflows then."""
    return float(peak) if peak and np.isfinite(peak) else 1.0


def octave(peak: float) -> float:
    """Return the power of two below a value: what is divided by it is rounded nowhere."""
    return float(np.ldexp(1.0, np.frexp(peak)[1] - 1))


def root(peak: float, by: float, mean: float) -> float:
    """Return the root mean square of values whose squares, over that of `by`, have this mean."""
    return by * float(np.sqrt(mean)) if peak and np.isfinite(peak) else peak
