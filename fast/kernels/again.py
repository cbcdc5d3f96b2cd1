"""Memory for what kernels and caches write to, which is used again once nobody looks at it.

The system hands memory out page by page as it is first written, and what is freed goes back to it:
so each page costs about as much as what a norm or a gate does with it.
"""

from collections.abc import Sequence
from math import prod
from typing import Any
from weakref import ref

import numpy as np

from lockstep.fast.shapes import Array

LEAST = 1 << 18  # bytes: less is left to the C library, which does use it again
MOST, ROOMS = 1 << 27, 64  # bytes that lie idle, and in how many rooms
SPARE = 8  # a room may be larger than what is asked for by so small a part of it
LINE = 64  # bytes of the cache's lines: a vector on two of them costs twice
_idle: dict[int, Array] = {}  # by their ids, the one that has lain longest first
_lent: dict[int, Any] = {}  # who has the others, by their ids


def empty(shape: Sequence[int], dtype: Any) -> Array:
    """Return an array as `np.empty` does; one that is large begins on a line of the cache.

    Its memory is lent for as long as it, or a view of it, is there.
    """
    kind = np.dtype(dtype)
    size = prod(shape) * kind.itemsize
    if size < LEAST:
        return np.empty(shape, kind)
    return lent(taken(size), size, kind).reshape(shape)


def lent(block: Array, size: int, kind: np.dtype) -> Array:
    """Return so many bytes of a room as an array, and have it given back behind the last view."""
    begin = -block.ctypes.data % LINE
    # All views have this one as their base, since what it looks at is no array.
    octets = np.frombuffer(memoryview(block)[begin : begin + size], np.uint8)
    _lent[id(block)] = ref(octets, lambda _: give_back(block))
    return octets.view(kind)


def empty_on_a_line(rows: int, columns: int, dtype: Any) -> Array:
    """Return an array as `empty` does; a small one begins on a line of the cache too."""
    size = np.dtype(dtype).itemsize
    if rows * columns * size >= LEAST:
        return empty((rows, columns), dtype)
    room = np.empty(rows * columns + LINE // size, dtype)
    begin = -room.ctypes.data % LINE // size
    return room[begin : begin + rows * columns].reshape(rows, columns)


def zeros(shape: Sequence[int], dtype: Any) -> Array:
    """Return an array as `np.zeros` does, in the same memory.

    A new room is 0 already, and takes no memory where nobody writes: caches may have much of it.
    """
    kind = np.dtype(dtype)
    size = prod(shape) * kind.itemsize
    if size < LEAST:
        return np.zeros(shape, kind)
    room = idle(size)
    array = lent(np.zeros(size + LINE, np.uint8) if room is None else room, size, kind)
    if room is not None:
        array.fill(0)
    return array.reshape(shape)


def taken(size: int) -> Array:
    """Return an idle room that fits, or a new one."""
    room = idle(size)
    return np.empty(size + LINE, np.uint8) if room is None else room


def idle(size: int) -> Array | None:
    """Return the smallest idle room that fits; None if none does.

    Another thread may take it meanwhile, and then has it alone.
    """
    least, most = size + LINE, size + LINE + size // SPARE
    fits = (block for block in _idle.copy().values() if least <= len(block) <= most)
    for block in sorted(fits, key=len):
        if _idle.pop(id(block), None) is not None:
            return block
    return None


def give_back(block: Array) -> None:
    """Keep a room for whoever asks next, and free those that have lain longest if it is too much.

    One that alone would be too much is freed itself.
    Nothing waits here: the last view may go while this thread is at `taken`.
    """
    _lent.pop(id(block), None)
    if len(block) > MOST:
        return
    _idle[id(block)] = block
    held = _idle.copy()
    rest, rooms = sum(len(one) for one in held.values()), len(held)
    for key, one in held.items():
        if rest <= MOST and rooms <= ROOMS:
            return
        _idle.pop(key, None)
        rest, rooms = rest - len(one), rooms - 1
