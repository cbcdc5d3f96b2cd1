"""Threads that look at two tensors of one shape, piece by piece."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from lockstep.parity.dumps.parts import Parts

Found = TypeVar("Found")


class Crew:
    """So many threads, which keep the room that they read into: new memory costs more than reading.

    What is found of each piece comes in the order of the pieces, so that sums of it are the same to
    the bit however many threads there are. `compiled`: they may use machine code.
    """

    def __init__(self, threads: int, *, compiled: bool):
        self.threads, self.compiled = threads, compiled
        self.pool: ThreadPoolExecutor | None = None
        self.own = threading.local()

    def each(
        self, look: Callable[[np.ndarray, np.ndarray], Found], left: Parts, right: Parts
    ) -> Iterator[Found]:
        """Yield what `look` finds of each pair of pieces, which it may not keep."""

        def found(span: tuple[int, int]) -> Found:
            ours, theirs = self.rooms(left, right)
            return look(left.read(*span, ours), right.read(*span, theirs))

        spans = right.spans()
        if self.threads == 1 or len(spans) == 1:
            return map(found, spans)
        if self.pool is None:
            self.pool = ThreadPoolExecutor(self.threads)
        return self.pool.map(found, spans)

    def rooms(self, *tensors: Parts) -> list[np.ndarray | None]:
        """Return this thread's room for a piece of each tensor."""
        kept: list[np.ndarray | None] = self.own.__dict__.setdefault("rooms", [None] * len(tensors))
        for place, tensor in enumerate(tensors):
            room = kept[place]
            if room is None or room.size < tensor.room:
                kept[place] = np.empty(tensor.room, np.uint8)
        return kept

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
