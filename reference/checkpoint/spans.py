"""Some rows and some columns of a stored matrix, read without the rest of it.

A matrix is taken as rows of bytes, whatever a byte means: columns a to b of w are the bytes from
a/w to b/w of a row. That holds of floats, of packed codes and their scales, and of blocks, as long
as a and b lie on the borders of what shares a scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np

from lockstep.reference.checkpoint.files import FileStamp, check_unchanged, open_file, read_into
from lockstep.reference.checkpoint.safetensors_header import Entry

Span = tuple[int, int]  # from the first to one past the last
Spans = tuple[Span, ...]
PAGE = 4096  # bytes that a disk brings at once: so much between two pieces is read over
BLOCK = 1 << 20  # bytes that are read over at once


def read_part(
    path: Path, file: FileStamp, entry: Entry, rows: Spans | None, columns: Spans | None, width: int
) -> np.ndarray:
    """Return the bytes of some rows and columns of a tensor, uint8 (rows, bytes of the columns).

    A tensor counts as rows of its last axis, a vector as rows of one number; None is all. `width`
    is how many columns a row stands for: codes are fewer than what they stand for.
    """
    count = prod(entry.shape[:-1] if len(entry.shape) > 1 else entry.shape)
    row_bytes = (entry.stop - entry.start) // count
    rows, wanted = rows or ((0, count),), bytes_of(columns, width, row_bytes)
    size = sum(stop - first for first, stop in wanted)
    buffer = np.empty((sum(stop - first for first, stop in rows), size), np.uint8)
    flat, done = buffer.reshape(-1).data, 0
    with open_file(path) as descriptor:
        check_unchanged(descriptor, path, file)
        if len(wanted) == 1 and 0 < row_bytes - size <= PAGE:
            read_over(descriptor, buffer, entry.start + wanted[0][0], rows, row_bytes, path)
        else:
            for place, length in pieces(row_bytes, rows, wanted):
                read_into(descriptor, flat[done : done + length], entry.start + place, path)
                done += length
        check_unchanged(descriptor, path, file)
    return buffer


def read_over(
    descriptor: int, buffer: np.ndarray, start: int, rows: Spans, row_bytes: int, path: Path
) -> None:
    """Read one piece of each row, with the little that lies between them, many rows at a time.

    `start` is where the piece of row 0 begins. A read for each row takes three to thirty times as
    long, and the disk brings the same pages.
    """
    size, done = buffer.shape[1], 0
    for begin, end in rows:
        for row in range(begin, end, step := max(BLOCK // row_bytes, 1)):
            count = min(step, end - row)
            block = np.empty((count - 1) * row_bytes + size, np.uint8)
            read_into(descriptor, block.data, start + row * row_bytes, path)
            own = np.lib.stride_tricks.as_strided(block, (count, size), (row_bytes, 1))
            buffer[done : done + count] = own
            done += count


def pieces(row_bytes: int, rows: Spans, columns: Spans) -> Iterator[tuple[int, int]]:
    """Yield where each piece begins in the matrix, and its length; whole rows make one piece."""
    for begin, end in rows:
        if columns == ((0, row_bytes),):
            yield begin * row_bytes, (end - begin) * row_bytes
            continue
        for row in range(begin, end):
            for first, stop in columns:
                yield row * row_bytes + first, stop - first


def bytes_of(columns: Spans | None, width: int, row_bytes: int) -> Spans:
    """Return spans of columns, of a row of `width`, as spans of its bytes; None is all of it."""
    if columns is None:
        return ((0, row_bytes),)
    return tuple((first * row_bytes // width, last * row_bytes // width) for first, last in columns)
