"""A tensor in a few hundred bytes: norms and seeded projections of the parts of each axis.

Each axis is cut into at most `PARTS` parts. Of a part its norm is kept, and the sums of its values
under `PROJECTIONS` draws of random signs. The square of such a sum is on average the square of the
norm, and so it is for the difference of two tensors: how far they are apart, and in which parts,
can be told from their sketches alone (Alon, Matias and Szegedy, 1996).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

PARTS = 8
PROJECTIONS = 3
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """The part of an axis that begins at `start` and ends before `stop`."""

    axis: int
    start: int
    stop: int


def parts_of(shape: Shape) -> list[Part]:
    """Return the parts of every axis that is longer than 1; of a single number, the number."""
    if not prod(shape):
        return []
    axes = [axis for axis, size in enumerate(shape) if size > 1] or [len(shape) - 1]
    return [
        Part(axis, size * number // count, size * (number + 1) // count)
        for axis in axes
        for size in [shape[axis] if shape else 1]
        for count in [min(size, PARTS)]
        for number in range(count)
    ]


def length_of(shape: Shape) -> int:
    """Return how many numbers the sketch of a tensor has."""
    return 1 + len(parts_of(shape)) * (1 + PROJECTIONS)


@np.errstate(all="ignore")  # a broken port may hold anything
def sketch(array: np.ndarray) -> np.ndarray:
    """Return the peak, then of each part its norm and projections over the peak, in float64.

    What is not finite counts as zero: the place of such values is compared otherwise.
    """
    x = array.astype(np.float64)
    x = np.where(np.isfinite(x), x, 0.0)
    peak = float(np.abs(x).max(initial=0.0))
    x = x / (peak or 1.0)
    parts = parts_of(array.shape)
    columns = [np.sqrt(sums(x * x, parts))]
    columns += [sums(x * signs(array.shape, draw), parts) for draw in range(PROJECTIONS)]
    return np.concatenate([[peak], np.stack(columns, axis=-1).ravel()])


def sums(x: np.ndarray, parts: list[Part]) -> np.ndarray:
    """Return the sum of each part."""
    lines: dict[int, np.ndarray] = {}
    for axis in {part.axis for part in parts}:
        others = tuple(other for other in range(x.ndim) if other != axis % max(x.ndim, 1))
        lines[axis] = np.atleast_1d(x.sum(axis=others))
    return np.array([lines[part.axis][part.start : part.stop].sum() for part in parts])


def signs(shape: Shape, draw: int) -> np.ndarray:
    """Return +1 and -1 for each place: the bits of PCG64, whose stream NumPy keeps as it is."""
    count = prod(shape)
    words = np.random.PCG64(draw).random_raw(count // 64 + 1).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), count=count)
    return (bits.astype(np.int8) * 2 - 1).reshape(shape)


@dataclass(frozen=True)
class Apart:
    """How far two tensors are apart, by their sketches. `parts` and `size` are squared norms of the
    difference and of the first tensor, part by part; the rest is as in `metrics.Distance`."""

    rms_rel: float | None
    gain: float | None
    cosine: float | None
    parts: np.ndarray
    size: np.ndarray


def apart(truth: np.ndarray, port: np.ndarray, shape: Shape) -> Apart:
    """Estimate from two sketches how far the tensors are apart. Both have `shape`."""
    left, right = table(truth), table(port)
    peak = max(truth[0], port[0]) or 1.0
    left, right = left * (truth[0] / peak), right * (port[0] / peak)
    off = np.mean((right[:, 1:] - left[:, 1:]) ** 2, axis=1)
    size = left[:, 0] ** 2
    axes = np.array([part.axis for part in parts_of(shape)])
    whole = [(off[axes == axis].sum(), size[axes == axis].sum()) for axis in np.unique(axes)]
    shares = [error / total for error, total in whole if total]
    along = float((left[:, 1:] * right[:, 1:]).sum())
    own, other = float((left[:, 1:] ** 2).sum()), float((right[:, 1:] ** 2).sum())
    return Apart(
        rms_rel=float(np.sqrt(max(shares))) if shares else None,
        gain=along / own if own else None,
        cosine=along / np.sqrt(own * other) if own and other else None,
        parts=off,
        size=size,
    )


def table(numbers: np.ndarray) -> np.ndarray:
    return numbers[1:].astype(np.float64).reshape(-1, 1 + PROJECTIONS)


def place(bad: np.ndarray, shape: Shape) -> str:
    """Say where bad parts are, an entry for each axis: [0, 4..6, :]."""
    parts = parts_of(shape)
    said = []
    for axis, size in enumerate(shape):
        mine = [(part, wrong) for part, wrong in zip(parts, bad, strict=True) if part.axis == axis]
        spans = joined([part for part, wrong in mine if wrong])
        everywhere = not spans or spans == [(0, size)]
        said.append("0" if size == 1 else ":" if everywhere else "+".join(map(span, spans)))
    return f"[{', '.join(said)}]"


def joined(parts: list[Part]) -> list[tuple[int, int]]:
    """Return the spans of parts, those that touch as one."""
    spans: list[tuple[int, int]] = []
    for part in parts:
        if spans and spans[-1][1] == part.start:
            spans[-1] = spans[-1][0], part.stop
        else:
            spans.append((part.start, part.stop))
    return spans


def span(ends: tuple[int, int]) -> str:
    start, stop = ends
    return str(start) if stop - start == 1 else f"{start}..{stop - 1}"
