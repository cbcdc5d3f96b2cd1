"""Sums and counts over two tensors in machine code: once over them, without a copy.

Only what is compiled needs Numba, through `fast.kernels`, which knows where to keep the code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from lockstep.parity.judging.histogram import BEFORE, LAST, SHIFT

BLOCK = 512  # numbers whose sums are added up before they go to those of the whole
LANES = 16  # sums that run side by side
# How machine code is given a type: whole numbers of its size, where it knows none of the kind.
KINDS = {"float32": np.float32, "bfloat16": np.uint16, "float16": np.int16}

Code = Callable[..., None]


class Seen(NamedTuple):
    """Of difference, truth and port: the largest difference, three sums of squares; the sum of
    truth * port; the tally of differences."""

    most: float
    squares: np.ndarray
    across: float
    tally: np.ndarray


@cache
def compiler() -> tuple[Callable[[], Code], ...]:
    """Return two ways to compile, for all processes and for this one; no way without Numba."""
    from lockstep.fast import kernels

    if not kernels.available():
        return ()
    from lockstep.fast.kernels.doubles import look
    from lockstep.fast.kernels.kernel import compiled, unkept

    return cache(lambda: compiled(look)), cache(lambda: unkept(look))


@cache
def machine_code(port: np.dtype, truth: np.dtype) -> Code | None:
    """Return what looks at two types, None where there is no Numba, or for others than `KINDS`.

    So too for numbers in another machine's byte order, which has the same name. It is compiled
    before threads ask for it at once.
    """
    known = all(kind.isnative and kind.name in KINDS for kind in (port, truth))
    ways = compiler() if known else ()
    if not ways:
        return None
    from lockstep.fast.kernels.kernel import TORN

    kept, own = ways
    try:
        return tried(kept(), port, truth)
    except TORN:  # what was kept cannot be read
        return tried(own(), port, truth)


def tried(code: Code, port: np.dtype, truth: np.dtype) -> Code:
    seen_by(code, np.ones(1, port), np.ones(1, truth))
    return code


def seen_by(code: Code, port: np.ndarray, truth: np.ndarray) -> Seen:
    """Look at two tensors of one axis. Where a sum is not finite nothing of it holds."""
    lanes, counts = np.zeros((5, LANES)), np.zeros((4, LAST + 1), np.uint32)
    keys, padded = np.empty(BLOCK, np.uint16), -port.size
    for ours, theirs in blocks_of(port, truth):
        code(ours, theirs, lanes.reshape(-1), counts, keys, SHIFT, BEFORE)
        padded += ours.size
    tally = counts[0].astype(np.int64)
    tally[0] -= padded
    totals = lanes[:4].sum(axis=-1)
    return Seen(float(lanes[4].max()), totals[:3], float(totals[3]), tally)


def blocks_of(port: np.ndarray, truth: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return both as far as they fill blocks, and the rest as a block that zeros fill up.

    All are of one kind, read-only and aligned: for another one Numba would compile, or read what it
    kept, once more, in each thread and past `tried`.
    """
    full = port.size // BLOCK * BLOCK
    both = [np.require(one, None, ["C", "A"]).view(KINDS[one.dtype.name]) for one in (port, truth)]
    found = [[one[:full] for one in both]]
    if full < port.size:
        rest = [np.zeros(BLOCK, one.dtype) for one in both]
        for end, one in zip(rest, both, strict=True):
            end[: port.size - full] = one[full:]
        found.append(rest)
    for view in (one for pair in found for one in pair):
        view.flags.writeable = False
    return [(ours, theirs) for ours, theirs in found]
