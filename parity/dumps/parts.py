"""A tensor that is read a part at a time, so that it may be larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

PIECE = 1 << 20  # numbers that are read at once, of each tensor and by each thread

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """A tensor's shape and type, and how its numbers from `start` to `stop` are read.

    Numbers are counted along the last axis first, as they lie in a row-major file. `read` may be
    given room, bytes that it can write to. `in_file` is false of what is in memory already.
    """

    shape: Shape
    dtype: np.dtype
    read: Callable[[int, int, np.ndarray | None], np.ndarray]
    in_file: bool = True

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def room(self) -> int:
        """How many bytes reading a piece takes."""
        return min(self.size, PIECE) * self.dtype.itemsize if self.in_file else 0

    def reshaped(self, shape: Shape) -> Parts:
        """Return the same numbers in the same order. Raises: ValueError if they do not fit."""
        if prod(shape) != self.size:
            raise ValueError(f"{self.size} numbers do not fill the shape {list(shape)}")
        return replace(self, shape=shape)

    def spans(self) -> list[tuple[int, int]]:
        """Return where each piece begins and ends; of nothing there is one, which is empty."""
        starts = range(0, max(self.size, 1), PIECE)
        return [(start, min(start + PIECE, self.size)) for start in starts]

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield all numbers a piece at a time, which is written over by the next."""
        room = np.empty(self.room, np.uint8)
        return (self.read(*span, room) for span in self.spans())

    def whole(self) -> np.ndarray:
        return self.read(0, self.size, None).reshape(self.shape)


def held(array: np.ndarray) -> Parts:
    """Return a tensor that is in memory already."""
    flat = array.reshape(-1)
    return Parts(array.shape, array.dtype, lambda start, stop, room: flat[start:stop], False)


def parts_of(tensor: np.ndarray | Parts) -> Parts:
    return tensor if isinstance(tensor, Parts) else held(tensor)
