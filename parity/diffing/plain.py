"""Judge two tensors with nothing but the two: no model, so no oracle."""

from dataclasses import replace
from typing import Protocol

import numpy as np

from lockstep.parity.dumps.crew import Crew
from lockstep.parity.dumps.parts import Parts, parts_of
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.judging.metrics import distance
from lockstep.parity.judging.padding import Padding, rows_named
from lockstep.parity.judging.result import Tap
from lockstep.parity.naming.names import is_tap

Tensor = np.ndarray | Parts
TRUST = "no --model, so no oracle: own error is not known, and the verdict rests on rounding alone"

# Rounding alone must explain the difference: this many steps of the last bit, as root mean square
# over that of the left side. Errors of earlier layers are in it, so right ports show up to 10
# steps of float32 and 7 of half precision in a model of four layers, and more in deeper ones.
STEPS = {"float64": 64, "float32": 64, "float16": 16, "bfloat16": 16}


def judged_plainly(
    name: str,
    port: Tensor,
    truth: Tensor,
    dtype: str,
    crew: Crew | None = None,
    *,
    limit: float | None = None,
) -> Tap:
    """Return "ok" if rounding in `dtype` may be all that lies between the two, else "differs".

    Numbers that no rounding touches must be equal. Shapes are never made to fit. Parts are read a
    piece at a time, by a crew if there is one. `limit` is how far right ports may be apart, if it
    is not what `rounding` says.
    """
    if port.shape != truth.shape:
        return unfit(name, port, f"shape {list(port.shape)}, but should be {list(truth.shape)}")
    if "c" in (port.dtype.kind, truth.dtype.kind):
        return not_judged(name, port.shape, "complex numbers are not compared")
    whole = [array.dtype.name for array in (port, truth) if array.dtype.kind in "iub"]
    if whole and is_tap(name):
        return unfit(name, port, f"stored as {whole[0]}, but an activation should be floating")
    with np.errstate(all="ignore"):
        far = distance(port, truth, crew=crew)
    limit = 0.0 if whole else rounding(dtype) if limit is None else limit
    close = far.max_abs == 0 or (far.rms_rel is not None and far.rms_rel <= limit)
    place = None if close else first_place(port, truth, limit)
    tap = so_far(name, port, far, place)
    return replace(tap, max_abs=far.max_abs, histogram=far.histogram)


def judged_by_rows(
    name: str,
    port: np.ndarray,
    truth: np.ndarray,
    dtype: str,
    padding: Padding,
    *,
    limit: float | None = None,
) -> Tap:
    """Do it for a batch by its real tokens alone, and say which rows differ."""
    if not padding.fits(name, port.shape):
        return not_judged(name, port.shape, "its rows are not the tokens of the batch")

    def judged(row: int | None = None) -> Tap:
        left, right = (padding.real(name, one, row) for one in (port, truth))
        return judged_plainly(name, left, right, dtype, limit=limit)

    tap = replace(judged(), shape=port.shape)
    if tap.status != "differs":
        return tap
    bad = [row for row in range(padding.rows) if judged(row).status == "differs"]
    said = f"of the tokens that fill nothing up, {tap.place}"
    return replace(tap, place=rows_named(bad, padding.rows) + said)


def rounding(dtype: str) -> float:
    """Return how far right ports may be apart, in `rms_rel`."""
    return STEPS[dtype] * EPSILONS[dtype]


@np.errstate(all="ignore")
def first_place(port: Tensor, truth: Tensor, limit: float) -> str:
    """Say the first value that is off by more than the limit of the largest there should be."""
    port, truth = parts_of(port), parts_of(truth)
    allowed = limit * max(map(largest_finite, truth.pieces()))
    unknown, first = 0, None
    pieces = zip(port.spans(), port.pieces(), truth.pieces(), strict=True)
    for (start, _), *pair in pieces:
        wide, right = (one.astype(np.float64) for one in pair)
        unknown += int(np.count_nonzero(~np.isfinite(wide)))
        if first is None:
            bad = ~((np.abs(wide - right) <= allowed) | (wide == right))
            at = int(np.argmax(bad)) if bad.any() else None
            first = first if at is None else (start + at, wide[at], right[at])
    count = f"; {unknown} of {port.size} are not finite" if unknown else ""
    if first is None:
        return f"no single value stands out{count}"
    index = [int(i) for i in np.unravel_index(first[0], port.shape)]
    if np.isnan(first[1:]).all():
        return f"first at {index}: nan on both sides{count}"
    return f"first at {index}: {first[1]:.6g}, but should be {first[2]:.6g}{count}"


def largest_finite(values: np.ndarray) -> float:
    wide = values.astype(np.float64)
    return float(np.abs(np.where(np.isfinite(wide), wide, 0.0)).max(initial=0.0))


class Shaped(Protocol):
    """Whatever has a shape."""

    @property
    def shape(self) -> tuple[int, ...]: ...


class Far(Protocol):
    """How far two tensors are apart, as they or their sketches say."""

    @property
    def rms_rel(self) -> float | None: ...
    @property
    def cosine(self) -> float | None: ...
    @property
    def gain(self) -> float | None: ...


def so_far(name: str, port: Shaped, far: Far, place: str | None) -> Tap:
    """Return "ok", or "differs" if there is a place where it does."""
    status = "ok" if place is None else "differs"
    return Tap(name, None, port.shape, status, rms_rel=far.rms_rel, cosine=far.cosine,
               gain=far.gain, place=place)  # fmt: skip


def unfit(name: str, port: Shaped, place: str) -> Tap:
    return Tap(name=name, op=None, shape=port.shape, status="differs", place=place)


def not_judged(name: str, shape: tuple[int, ...], why: str) -> Tap:
    return Tap(name=name, op=None, shape=shape, status="not judged", place=why)
