"""A tensor in a few hundred bytes: norms and seeded projections of the parts of each axis.

Each axis is cut into at most `PARTS` parts. Of a part its norm is kept, and the sums of its values
under `PROJECTIONS` draws of random signs. The square of such a sum is on average the square of the
norm, and so it is for the difference of two tensors: how far they are apart, and in which parts,
can be told from their sketches alone (Alon, Matias and Szegedy, 1996).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from lockstep.parity.dumps.parts import Parts
from lockstep.parity.dumps.parts import parts_of as in_parts

PIECE = 1 << 16  # numbers at a time
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


def sketch(tensor: np.ndarray | Parts) -> np.ndarray:
    """Return the peak, then of each part its norm and projections over the peak, in float64.

    What is not finite counts as zero: the place of such values is compared otherwise. A tensor is
    looked at a piece at a time.
    """
    made = Sketching(tensor)
    for start, piece in pieces_of(tensor):
        made.add(start, piece)
    return made.numbers


def pieces_of(tensor: np.ndarray | Parts) -> Iterator[tuple[int, np.ndarray]]:
    """Yield pieces of whole rows, or of one row where rows are long, and where each begins."""
    tensor = in_parts(tensor)
    if not tensor.size:
        return
    last = tensor.shape[-1] if tensor.shape else 1
    step = PIECE // last * last or PIECE
    start = 0
    while start < tensor.size:
        stop = min(start + step, tensor.size)
        if last > PIECE:
            stop = min(stop, (start // last + 1) * last)
        yield start, tensor.read(start, stop, None)
        start = stop


class Sketching:
    """The sketch of a tensor whose pieces come one after another.

    Squares of float64 could overflow, so such a tensor is looked at twice.
    """

    def __init__(self, tensor: np.ndarray | Parts):
        tensor = in_parts(tensor)
        self.shape, self.peak = tensor.shape, 0.0
        self.scale = 1.0
        if tensor.dtype.itemsize > 4:
            tops = (largest(finite(piece)) for _, piece in pieces_of(tensor))
            self.scale = max(tops, default=0.0) or 1.0
        self.draws = [np.random.PCG64(draw) for draw in range(PROJECTIONS)]
        # Of each place of an axis: the sum of its squares, and its sums under each draw.
        self.lines = {axis: np.zeros((1 + PROJECTIONS, size))
                      for axis, size in enumerate(self.shape or (1,))}  # fmt: skip

    @np.errstate(all="ignore")  # a broken port may hold anything
    def add(self, start: int, piece: np.ndarray) -> None:
        """Add what begins at the number `start`, whole rows or a part of one."""
        x = finite(piece)
        self.peak = max(self.peak, largest(x))
        x /= self.scale
        wide = np.stack([x * x, *(x * signs_at(draw, start, x.size) for draw in self.draws)])
        last = self.shape[-1] if self.shape else 1
        rows = wide.reshape(len(wide), -1, min(last, x.size))  # (1 + draws, rows, columns)
        first, column = divmod(start, last)
        self.lines[max(len(self.shape) - 1, 0)][:, column : column + rows.shape[2]] += rows.sum(1)
        totals, row = rows.sum(axis=2), np.arange(first, first + rows.shape[1])
        for axis in range(len(self.shape) - 1):
            place = row // prod(self.shape[axis + 1 : -1]) % self.shape[axis]
            size = self.shape[axis]
            self.lines[axis] += [np.bincount(place, one, minlength=size) for one in totals]

    @property
    def numbers(self) -> np.ndarray:
        parts, by = parts_of(self.shape), self.scale / (self.peak or 1.0)
        sums = [self.lines[max(part.axis, 0)][:, part.start : part.stop].sum(1) for part in parts]
        made = np.array(sums).reshape(-1, 1 + PROJECTIONS) * by
        made[:, 0] = np.sqrt(made[:, 0] * by)
        return np.concatenate([[self.peak], made.ravel()])


def finite(piece: np.ndarray) -> np.ndarray:
    """Return numbers in float64, a copy, with zeros for what is not finite."""
    x = piece.reshape(-1).astype(np.float64)
    x[~np.isfinite(x)] = 0.0
    return x


def largest(x: np.ndarray) -> float:
    return float(np.abs(x).max(initial=0.0))


def signs_at(stream: np.random.PCG64, start: int, count: int) -> np.ndarray:
    """Return +1 and -1 for places from `start` on: the bits of PCG64, which NumPy keeps as it is.

    The stream stays at its beginning.
    """
    word, first = divmod(start, 64)
    own = np.random.PCG64()
    own.state = stream.state
    words = own.advance(word).random_raw((first + count) // 64 + 1).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), count=first + count)[first:]
    return bits.astype(np.int8) * 2 - 1


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
