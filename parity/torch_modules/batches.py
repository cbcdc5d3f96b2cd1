"""Batches of unequal prompts, row by row: torch modules run each prompt alone.

So no mask, and nobody's idea of padding, comes between a row and what is right for it. What fills a
row up is cut away before, and stands for nothing after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.judging.padding import Padding
from lockstep.parity.naming.align import Alignment, Shape
from lockstep.parity.naming.names import step_of
from lockstep.parity.torch_modules.survey import Survey

ONE = Padding((1,))


@dataclass(frozen=True)
class RowOf(Alignment):
    """One row of a batch, read as if its prompt had run alone; `left` if padding is there."""

    padding: Padding = ONE
    row: int = 0
    left: bool = False

    def raw(self, tap: str, shape: Shape | None) -> np.ndarray:
        whole, rows = self.dump.read(self.names[tap]), self.padding.rows
        if whole.ndim and whole.shape[0] in (1, rows):
            mine = whole[self.row :][:1] if whole.shape[0] == rows else whole
            return self.cut(tap, mine, shape, 1)
        if whole.ndim and (step_of(tap) or whole.shape[0] == rows * self.padding.longest):
            listed = whole.reshape(rows, -1, *whole.shape[1:])  # from (B*L, X)
            return self.cut(tap, listed[self.row], shape, 0)
        return whole

    def cut(self, tap: str, x: np.ndarray, shape: Shape | None, first: int) -> np.ndarray:
        """Leave out what fills up the axis of tokens, which is that from `first` on that fits."""
        length, longest = self.padding.lengths[self.row], self.padding.longest
        fits = [axis for axis in range(first, x.ndim) if x.shape[axis] == longest]
        if shape is not None and len(shape) == x.ndim:
            fits = [axis for axis in fits if shape[axis] == length]
        if step_of(tap) or not fits:
            return x
        kept = slice(longest - length, None) if self.left else slice(0, length)
        return np.moveaxis(np.moveaxis(x, fits[0], 0)[kept], 0, fits[0])


def row_of(whole: Alignment, said: Dump, padding: Padding, row: int) -> RowOf:
    """Return a row of a side; `said` is the dump that says how it is filled up.

    What is the same for all rows, such as the angles of positions, says nothing of a row that
    begins behind its padding.
    """
    left = said.padding == "left" and len(set(padding.lengths)) > 1

    def of_rows(tap: str, shape: Shape) -> bool:
        return not left or step_of(tap) > 0 or len(shape) < 3 or shape[0] == padding.rows

    shapes = whole.dump.shapes
    names = {tap: name for tap, name in whole.names.items() if of_rows(tap, shapes[name])}
    return RowOf(whole.dump, names, whole.renamed, told=whole.told, padding=padding, row=row,
                 left=left)  # fmt: skip


@dataclass(frozen=True)
class Stacked(Alignment):
    """The rows of a batch side by side again, filled up on the right: (B, L, ...)."""

    rows: tuple[Alignment, ...] = ()
    found: tuple[Survey, ...] = ()
    padding: Padding = ONE

    def read(self, tap: str, shape: Shape | None = None) -> np.ndarray:
        parts = [row.read(tap, found.shapes.get(tap))
                 for row, found in zip(self.rows, self.found, strict=True)]  # fmt: skip
        return stacked(parts, self.padding)


def stacked(parts: Sequence[np.ndarray], padding: Padding) -> np.ndarray:
    """Put what rows have of a tap, (1, L, ...) or (L, X), side by side: (B, L, ...).

    Parts that do not fit beside each other are misshapen, and the first is returned; so it is if
    they are single numbers.
    """
    if any(part.ndim == 0 for part in parts):
        return parts[0]
    rows = [part[None] if part.ndim == 2 else part for part in parts]
    axes = [axis for axis in range(1, rows[0].ndim)
            if all(axis < row.ndim and row.shape[axis] == length
                   for row, length in zip(rows, padding.lengths, strict=True))]  # fmt: skip
    if axes:
        rows = [filled(np.moveaxis(row, axes[0], 1), padding.longest) for row in rows]
    return np.concatenate(rows) if len({row.shape for row in rows}) == 1 else rows[0]


def filled(row: np.ndarray, longest: int) -> np.ndarray:
    wide = np.zeros((row.shape[0], longest, *row.shape[2:]), row.dtype)
    wide[:, : row.shape[1]] = row
    return wide
