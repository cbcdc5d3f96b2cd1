"""Judge a tensor by sketches: may rounding be all that lies between the two?"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from lockstep.parity.diffing.plain import so_far, unfit
from lockstep.parity.judging.result import Tap
from lockstep.parity.naming.names import is_tap
from lockstep.parity.sketches.sketch import apart, parts_of, place, table
from lockstep.parity.sketches.sketched import Entry

# A part of an axis may be off by so many times what the whole may: right ports show up to 1.2.
PART = 4.0
SAME = 2e-7  # of whole numbers in two widths, whose hashes say nothing: what a file rounds off
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
    if port.dtype in WHOLE and truth.dtype in WHOLE and port.dtype != truth.dtype:
        close = (far.rms_rel or 0.0) <= SAME and bool((far.parts <= SAME**2 * far.size).all())
    where = None if close else f"in {place(worst(far.parts, far.size, parts_ok), truth.shape)}"
    return so_far(name, Shaped(port.shape), far, where)


def seems_swapped(port: Entry, truth: Entry, limit: float) -> bool:
    """Say whether heads and tokens, as many of the one as of the other, seem to lie the other way:
    the norms of the parts of each axis are those of the other's parts."""
    if min(len(port.shape), len(truth.shape)) < 3 or port.shape[-2] != port.shape[-3]:
        return False
    ours, theirs = norms(truth), norms(port)
    theirs[-2], theirs[-3] = theirs.get(-3, np.zeros(0)), theirs.get(-2, np.zeros(0))
    return all(
        theirs[axis].shape == own.shape
        and bool((np.abs(theirs[axis] - own) <= PART * limit * own).all())
        for axis, own in ours.items()
    )


def norms(entry: Entry) -> dict[int, np.ndarray]:
    """Return the norms of the parts of each axis, axes counted from the last one, which is -1."""
    found = table(entry.numbers)[:, 0] * entry.numbers[0]
    axes = np.array([part.axis for part in parts_of(entry.shape)]) - len(entry.shape)
    return {int(axis): found[axes == axis] for axis in np.unique(axes)}


def worst(parts: np.ndarray, size: np.ndarray, parts_ok: np.ndarray) -> np.ndarray:
    """Choose the parts to show: those beyond their limit, else all that carry the difference."""
    return ~parts_ok if not parts_ok.all() else parts > 0.5 * parts.mean()
