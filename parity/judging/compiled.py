"""Sums and counts over two tensors of float32 in machine code: once over them, without a copy.

Only what is compiled here needs Numba, through `fast.kernels`, which knows where to keep the code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from lockstep.parity.judging.histogram import FRACTION, LOWEST, WIDTH

LANES = 512  # sums that run side by side: the processor adds several at once
MAGNITUDE = (1 << 63) - 1  # all bits of a float64 but its sign
NARROW = ("float32", "bfloat16", "float16")


def sums(port, truth, lanes):
    """Add up, of rows of LANES, the squares of difference, truth and port, truth * port, and keep
    the largest difference: lanes (5, LANES). An infinity on both sides is taken for 0 on both."""
    for row in range(port.shape[0]):
        for lane in range(port.shape[1]):
            t = np.float64(truth[row, lane])
            p = np.float64(port[row, lane])
            shared = p == t and abs(t) == np.inf
            t = 0.0 if shared else t
            p = 0.0 if shared else p
            lanes[0, lane] += (p - t) * (p - t)
            lanes[1, lane] += t * t
            lanes[2, lane] += p * p
            lanes[3, lane] += t * p
            lanes[4, lane] = max(lanes[4, lane], abs(p - t))


def counts(port, truth, first, table, off, bits):
    """Count |port - truth| by the powers of 4 above the number whose bits are `first`.

    `off` and `bits` are one row in memory. Bits of a float64 are in the order of the numbers, and
    its exponent of 4 begins one bit above that of 2.
    """
    zeros = 0
    for row in range(port.shape[0]):
        for lane in range(port.shape[1]):
            t = np.float64(truth[row, lane])
            p = np.float64(port[row, lane])
            off[lane] = 0.0 if p == t else p - t  # infinities too
        for lane in range(port.shape[1]):
            size = bits[lane] & MAGNITUDE
            zeros += size == 0
            bits[lane] = min(max((size - first) >> (FRACTION + 1), 0), table.shape[1] - 1)
        for lane in range(0, port.shape[1], 4):  # in turn: a count waits for the one before
            table[0, bits[lane]] += 1
            table[1, bits[lane + 1]] += 1
            table[2, bits[lane + 2]] += 1
            table[3, bits[lane + 3]] += 1
    return zeros


class Code(NamedTuple):
    """Both, compiled."""

    sums: Callable[..., Any]
    counts: Callable[..., Any]


@cache
def machine_code() -> Code | None:
    """Return what is compiled, None where there is no Numba."""
    from lockstep.fast import kernels

    if not kernels.available():
        return None
    from lockstep.fast.kernels.kernel import TORN, compiled, unkept

    try:
        return tried(Code(compiled(sums), compiled(counts)))
    except TORN:  # what was kept cannot be read
        return tried(Code(unkept(sums), unkept(counts)))


def tried(code: Code) -> Code:
    """Have both compiled before threads ask for them at once."""
    row = np.ones(1, np.float32)
    sums_of(code, row, row)
    tally_of(code, row, row, 1.0)
    return code


def takes(port: np.ndarray, truth: np.ndarray) -> bool:
    """Say whether both are of a kind that float32 holds, whose squares float64 holds."""
    return port.dtype.name in NARROW and truth.dtype.name in NARROW


def sums_of(code: Code, port: np.ndarray, truth: np.ndarray) -> tuple[float, np.ndarray, float]:
    """Return the largest difference, the three sums of squares, and that of truth * port."""
    lanes = np.zeros((5, LANES))
    for some in rows_of(port, truth):
        code.sums(*some, lanes)
    totals = lanes[:4].sum(axis=-1)
    return float(lanes[4].max()), totals[:3], float(totals[3])


def tally_of(code: Code, port: np.ndarray, truth: np.ndarray, size: float) -> np.ndarray:
    """Return how many differences are in each bin, then how many are zero, and are not finite.

    All must be finite, or one infinity on both sides. Sizes of float32 are far above those whose
    bins have no exponent.
    """
    first = int(np.float64(size).view(np.int64)) + LOWEST * (1 << FRACTION + 1)
    table, off, zeros, padded = np.zeros((4, WIDTH), np.int64), np.empty(LANES), 0, 0
    for ours, theirs in rows_of(port, truth):
        zeros += code.counts(ours, theirs, first, table, off, off.view(np.int64))
        padded += ours.size
    bins, padded = table.sum(axis=0), padded - port.size
    bins[0] -= zeros
    return np.array([*bins, zeros - padded, 0])


def rows_of(port: np.ndarray, truth: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return both in rows of LANES, and the rest as a row that zeros fill up.

    All are of one kind, read-only and aligned: for another one Numba would compile, or read what it
    kept, once more, in each thread and past `tried`.
    """
    full = port.size // LANES * LANES
    both = [np.require(one, np.float32, ["C", "A"]) for one in (port, truth)]
    rows = [one[:full].reshape(-1, LANES) for one in both]
    rest = [np.pad(one[full:], (0, full + LANES - one.size))[None] for one in both]
    for view in (*rows, *rest):
        view.flags.writeable = False
    return [(rows[0], rows[1]), (rest[0], rest[1])]
