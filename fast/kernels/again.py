"""Memory for what kernels write to, which is used again once nobody looks at it.

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
MOST = 1 << 27  # bytes that lie idle
SPARE = 2  # times as large a room may be as what is asked for
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
    block = taken(size)
    begin = -block.ctypes.data % LINE
    # All views have this one as their base, since what it looks at is no array.
    lent = np.frombuffer(memoryview(block)[begin : begin + size], np.uint8)
    _lent[id(block)] = ref(lent, lambda _: give_back(block))
    return lent.view(kind).reshape(shape)


def zeros(shape: Sequence[int], dtype: Any) -> Array:
    """Return an array as `np.zeros` does, in the same memory."""
    array = empty(shape, dtype)
    array.fill(0)
    return array


def taken(size: int) -> Array:
    """Return the smallest idle room, if there is one that fits; else a new one.

    Another thread may take it meanwhile, and then has it alone.
    """
    fits = (block for block in _idle.copy().values() if size + LINE <= len(block) <= SPARE * size)
    for block in sorted(fits, key=len):
        if _idle.pop(id(block), None) is not None:
            return block
    return np.empty(size + LINE, np.uint8)


def give_back(block: Array) -> None:
    """Keep a room for whoever asks next, and free those that have lain longest if it is too much.

    Nothing waits here: the last view may go while this thread is at `taken`.
    """
    _lent.pop(id(block), None)
    _idle[id(block)] = block
    held = _idle.copy()
    rest = sum(len(one) for one in held.values())
    for key, one in held.items():
        if rest <= MOST:
            return
        _idle.pop(key, None)
        rest -= len(one)
