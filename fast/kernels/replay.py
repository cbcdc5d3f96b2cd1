"""Kernels that ran once and are run again without Python between them: over the same arrays.

A function of arrays that only starts kernels is recorded as it runs, over copies of its inputs.
From then on other inputs of the same shapes are written into these copies, and all is run in one
go. What NumPy did in between would be missing: so the next time, with other numbers, it is done
both ways, and if one bit differs, the function is never run again so.
"""

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import is_
from typing import Any

import numpy as np

from lockstep.fast.kernels.kernel import LOCAL, Kept, played, usable
from lockstep.fast.shapes import Array

Function = Callable[..., Sequence[Array]]


class Replay:
    """One function's kernels, with all that they read and write."""

    def __init__(self, function: Function, inputs: Sequence[Array]):
        self.inputs, self.trusted = [one.copy() for one in inputs], False
        kept: list[Kept] = []
        LOCAL.recording, LOCAL.rooms = kept, []
        try:
            self.outputs = function(*self.inputs)
        finally:
            self.rooms = LOCAL.rooms
            LOCAL.recording = LOCAL.rooms = None
        self.alive = [one.alive for one in kept]
        self.jobs = np.array([one.numbers for one in kept], np.int64).reshape(-1, 5)
        self.shared = any(one.shared for one in kept)
        # Where a product was mended, other kernels ran than the next token needs.
        self.broken = not kept or self.lost()

    def lost(self) -> bool:
        """Whether a product has to be done in another way."""
        return any(room[-1] for room in self.rooms)

    def again(self, inputs: Sequence[Array]) -> list[Array] | None:
        """Run all for other inputs; None if a product then has to be done in another way."""
        for own, one in zip(self.inputs, inputs, strict=True):
            own[...] = one
        played(self.jobs, self.shared)
        return None if self.lost() else [one.copy() for one in self.outputs]


class Replays:
    """Functions of one model, each recorded when it first runs. One thread at a time."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Replay] = {}
        self.weights: list[Any] = []
        self.busy = threading.Lock()

    def over(self, weights: Mapping[str, Any]) -> "Replays":
        """Forget all if other weights have taken the place of some: they lie elsewhere."""
        same = len(weights) == len(self.weights) and all(map(is_, weights.values(), self.weights))
        if not same:
            self.known, self.weights = {}, [*weights.values()]
        return self

    def __call__(self, name: Hashable, function: Function, inputs: Sequence[Array]) -> Any:
        """Return a function's outputs, which depend on weights and on inputs of one shape alone."""
        if not usable() or not self.busy.acquire(blocking=False):
            return function(*inputs)
        try:
            return self.outputs(name, function, inputs)
        finally:
            self.busy.release()

    def outputs(self, name: Hashable, function: Function, inputs: Sequence[Array]) -> Any:
        known = self.known.get(name)
        if known is None:
            self.known[name] = known = Replay(function, inputs)
            return [one.copy() for one in known.outputs]
        if known.broken or (not known.trusted and any(map(same_bits, inputs, known.inputs))):
            return function(*inputs)  # of the same numbers nothing could be told
        found = known.again(inputs)
        if found is not None and known.trusted:
            return found
        plain = function(*inputs)
        if not known.trusted:
            known.trusted = found is not None and all(map(same_bits, found, plain))
            known.broken = not known.trusted
        return plain


def same_bits(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def watch(room: Array) -> None:
    """Remember, where kernels are recorded, what tells in its last element that one is lost."""
    rooms = getattr(LOCAL, "rooms", None)
    if rooms is not None:
        rooms.append(room)
