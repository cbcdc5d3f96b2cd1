"""Where a tensor of the architecture lies in the files: not always whole, or under its own name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lockstep.reference.checkpoint.spans import Spans

Read = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Source:
    """The tensors of the files that one tensor is made of. Nothing is computed, only moved.

    `names` is one name; or, `stacked`, one for each item of a new first axis. `transposed` says
    that the file holds (inputs, outputs). `half` is 0 or 1 where the file holds two matrices as
    one, the rows of the first above those of the second.
    """

    names: tuple[str, ...]
    stacked: bool = False
    transposed: bool = False
    half: int | None = None

    @property
    def as_it_lies(self) -> bool:
        """Whether the tensor is one of the files', whole and the same way round."""
        return not (self.stacked or self.transposed or self.half is not None)

    @property
    def modules(self) -> tuple[str, ...]:
        """The names without `.weight`: what scales and biases of a packed weight go by."""
        return tuple(name.removesuffix(".weight") for name in self.names)

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that each of the files' tensors must have to give one of `shape`."""
        shape = shape[1:] if self.stacked else shape
        if self.half is not None:
            shape = (*shape[:-2], 2 * shape[-2], shape[-1])
        return shape[::-1] if self.transposed else shape

    def whole(self, read: Read) -> np.ndarray:
        """Make the tensor, with `read` to get one of the files' tensors by name."""
        parts = [self._cut(read(name)) for name in self.names]
        return np.stack(parts) if self.stacked else parts[0]

    def rows(self, read: Read, read_rows: Callable[..., np.ndarray], span: slice) -> np.ndarray:
        """Make rows of the tensor, reading no other bytes where the files' layout allows it."""
        if self.stacked:
            return np.stack([self._cut(read(name)) for name in self.names[span]])
        if self.transposed:
            return self.whole(read)[span]
        return self._cut(read_rows(self.names[0], span.start, span.stop))

    def part(
        self,
        read_part: Callable[..., np.ndarray],
        shape: tuple[int, ...],
        rows: Spans | None,
        columns: Spans | None,
        matrix: int = 0,
    ) -> np.ndarray:
        """Make some rows and columns of a matrix, of a stack that with this number; None is all.

        `shape` is that of the whole tensor.
        """
        if self.transposed and len(shape) > 1:  # columns of the file are rows of the tensor
            return np.ascontiguousarray(read_part(self.names[0], columns, rows, shape[0]).T)
        *_, count, width = shape if len(shape) > 1 else (*shape, 1)
        name = self.names[matrix if self.stacked else 0]
        above = 0  # rows of the file before those of this matrix
        if len(shape) == 3 and not self.stacked:
            above = matrix * count * (1 if self.half is None else 2)
        above += (self.half or 0) * count
        moved = tuple((above + first, above + stop) for first, stop in rows or ((0, count),))
        return read_part(name, moved, columns, width)

    def _cut(self, stored: np.ndarray) -> np.ndarray:
        if self.transposed:
            stored = np.ascontiguousarray(stored.T)
        if self.half is None:
            return stored
        size = stored.shape[-2] // 2
        return stored[..., self.half * size : (self.half + 1) * size, :]
