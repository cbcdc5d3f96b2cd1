"""How fast this process reads its buffers, with a thread on each core: what no engine can beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from lockstep.parity.bench.timing import quickest
from lockstep.parity.dumps.crew import cores

WORD = 8


def read_rate(buffers: Sequence[np.ndarray]) -> float:
    """Return the bytes a second at which all buffers are read at best, a part by each thread."""
    words = [one for one in map(as_words, buffers) if one.size]
    parts = shared_out(words, cores())
    read, total = reader(), sum(one.nbytes for one in words)
    read(words[0][:1])  # compiles, and starts nothing
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(len, parts))  # the threads are there
        return total / quickest(
            lambda: list(pool.map(lambda part: [read(one) for one in part], parts))
        )


def as_words(buffer: np.ndarray) -> np.ndarray:
    """Return the bytes of a buffer as words of 64 bits, without the last few."""
    octets = np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    return octets[: octets.size // WORD * WORD].view(np.uint64)


def shared_out(words: Sequence[np.ndarray], parts: int) -> list[list[np.ndarray]]:
    """Cut each buffer into as many neighbours as there are threads: all finish at once."""
    return [
        [one[place * one.size // parts : (place + 1) * one.size // parts] for one in words]
        for place in range(parts)
    ]


@cache
def reader() -> Callable[[np.ndarray], Any]:
    """Return what adds words up: in machine code where there is Numba, else NumPy's own sum."""
    from lockstep.fast import kernels

    if not kernels.available():
        return np.add.reduce
    from lockstep.fast.kernels.kernel import unkept

    return unkept(added)


def added(words):
    total = np.uint64(0)
    for place in range(words.size):
        total += words[place]
    return total
