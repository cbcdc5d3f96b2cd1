"""Judge a tensor by sketches: may rounding be all that lies between the two?"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from lockstep.parity.diffing.plain import so_far, unfit
from lockstep.parity.judging.result import Tap
from lockstep.parity.naming.names import is_tap
from lockstep.parity.sketches.sketch import apart, place
from lockstep.parity.sketches.sketched import Entry

# A part of an axis may be off by so many times what the whole may: right ports show up to 1.2.
PART = 4.0
WHOLE = ("I64", "I32", "I16", "I8", "U16", "U8", "BOOL")  # dtypes that nothing rounds


@dataclass(frozen=True)
class Shaped:
    """What a line about a tensor needs of it."""

    shape: tuple[int, ...]


def judged(name: str, port: Entry, truth: Entry, limit: float) -> Tap:
    """Return "ok" if the two differ by no more than `limit` of the size of the truth, by the whole
    and by each part, else "differs". Equal bytes are equal, whatever they are but NaN."""
    shown = Shaped(port.shape)
    if prod(port.shape) != prod(truth.shape) or squeezed(port) != squeezed(truth):
        return unfit(name, shown, f"shape {list(port.shape)}, but should be {list(truth.shape)}")
    if is_tap(name) and port.dtype in WHOLE:
        return unfit(name, shown, f"stored as {port.dtype}, but an activation should be floating")
    if port.nan or truth.nan:
        whose, one = ("", port) if port.nan else ("of what should be there ", truth)
        return unfit(name, shown, f"{one.nan} of {prod(one.shape)} {whose}are NaN")
    if (port.digest, port.dtype) == (truth.digest, truth.dtype):
        return Tap(name, None, port.shape, "ok", max_abs=0.0,
                   rms_rel=0.0 if truth.numbers[0] else None)  # fmt: skip
    if port.infinite != truth.infinite:
        return unfit(name, shown, "infinite values elsewhere than they should be")
    return located(name, port, truth, 0.0 if port.dtype in WHOLE else limit)


def squeezed(entry: Entry) -> list[int]:
    """Return the shape without axes of 1, which a sketch does not know of."""
    return [size for size in entry.shape if size != 1]


def located(name: str, port: Entry, truth: Entry, limit: float) -> Tap:
    """Compare the sketches of the whole and of each part; no comparison passes by NaN."""
    far = apart(truth.numbers, port.numbers, truth.shape)
    with np.errstate(all="ignore"):
        parts_ok = far.parts <= (PART * limit) ** 2 * far.size
    whole_ok = far.rms_rel is not None and far.rms_rel <= limit
    close = limit > 0 and whole_ok and bool(parts_ok.all())
    close = close or (limit > 0 and far.rms_rel is None and not far.parts.any())
    where = None if close else f"in {place(worst(far.parts, far.size, parts_ok), truth.shape)}"
    return so_far(name, Shaped(port.shape), far, where)


def worst(parts: np.ndarray, size: np.ndarray, parts_ok: np.ndarray) -> np.ndarray:
    """Choose the parts to show: those beyond their limit, else all that carry the difference."""
    return ~parts_ok if not parts_ok.all() else parts > 0.5 * parts.mean()
