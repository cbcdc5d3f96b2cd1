"""Rewrites of what a call reads: its matrix changed on its way in, or another tensor instead.

A matrix may be dense or packed in any form, and a stack of them is changed one at a time. Where a
wrong reading can be said in the same packed form it stays packed, so that it rounds as packed
weights do; `dense` is for the rest.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import is_at
from lockstep.parity.graph import Call, Conflict, Derived, Graph, Ref, Tensor, rerooted
from lockstep.reference.checkpoint.adapters import Adapted
from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.checkpoint.checkpoint import StoredFormat
from lockstep.reference.checkpoint.stack import Stack

# Where an operation takes matrices, and where a bias.
MATRICES = {
    "linear": (1,), "embedding": (1,), "dora_rescale": (1,),
    "experts": (2, 3, 4), "geglu_experts": (2, 3, 4),
}  # fmt: skip
BIAS = {"linear": 2, "dora_rescale": 2}
KEPT = 256 << 20  # bytes of changed matrices that are kept

Change = Callable[..., Any]  # change(ops, matrix)


def dense(ops: Any, weight: Any, dtype: Any = np.float32) -> np.ndarray:
    """Return a matrix as plain numbers: unpacked if it is packed, with an adapter that it has."""
    if isinstance(weight, Adapted):
        a, b, scale = weight.adapter.a, weight.adapter.b, weight.adapter.scale
        return dense(ops, weight.weight, dtype) + np.dtype(dtype).type(scale) * (b @ a)
    if isinstance(weight, Packed):
        return ops.dequantize(weight, rows=slice(None), dtype=np.dtype(dtype))
    return weight.astype(dtype)


@dataclass(frozen=True)
class Reading:
    """A change of a matrix, or of every matrix of a stack when it is read, and when it happens.

    Whatever the order of rewrites, packed codes are misread before they are taken to mean other
    numbers, which lies in the biases too; that is before they are unpacked, unpacked before a
    matrix is moved about, and packed by another's hand after that.
    """

    change: Change
    turn: int

    def __call__(self, ops: Any, weight: Any, *more: Any) -> Any:
        if isinstance(weight, Stack):
            return Stack(weight.shape, lambda index: self.change(ops, weight[index], *more))
        return self.change(ops, weight, *more)


MISREAD, MEANT, UNPACKED, MOVED, PACKED = range(5)
ONCE = (UNPACKED, PACKED)


def turn_of(ref: Ref) -> int:
    """Return when the last change of a reference happens; a tensor is there before all."""
    if not isinstance(ref, Derived):
        return -1
    return ref.change.turn if isinstance(ref.change, Reading) else MOVED


def read_as(ref: Ref, reading: Reading, *more: Ref) -> Ref:
    """Change a matrix when it is time for it, below changes that come later.

    Raises: Conflict if two rewrites unpack or pack the same matrix.
    """
    if isinstance(ref, Derived) and turn_of(ref) > reading.turn:
        return Derived(ref.change, (read_as(ref.sources[0], reading, *more), *ref.sources[1:]))
    if reading.turn in ONCE and turn_of(ref) == reading.turn:
        raise Conflict("one matrix")
    return Derived(reading, (ref, *more))


def reweighted(
    change: Change,
    when: Callable[[StoredFormat], bool] = lambda stored: True,
    *places: str,
    turn: int = MOVED,
) -> Rewrite:
    """Change the matrices of a call on their way in, where `when` holds of how one is stored."""
    reading = Reading(change, turn)

    def rewritten(call: Call, graph: Graph) -> Call | None:
        if call.op not in MATRICES or not is_at(call.place, places):
            return None
        new = call
        for index in MATRICES[call.op]:
            stored = graph.stored.get(call.tensor(index) or "")
            if stored is not None and when(stored):
                new = new.with_input(index, read_as(new.inputs[index], reading))
        return None if new is call else new

    return rewritten


def reading(elsewhere: Callable[[str, Graph], str | None], *places: str) -> Rewrite:
    """Read other tensors: `elsewhere(name, graph)` says which one stands for a name.

    Nothing is changed unless all of a call's tensors have one of the same shape there.
    """

    def rewritten(call: Call, graph: Graph) -> Call | None:
        if not is_at(call.place, places):
            return None
        new = call
        for index, ref in enumerate(call.inputs):
            name = named(ref)
            if name is None:
                continue
            other = elsewhere(name, graph)
            if other is None or other == name:
                continue
            if not same_shape(graph, name, other):
                return None
            new = new.with_input(index, renamed(ref, other))
        return None if new is call else new

    return rewritten


def named(ref: Ref) -> str | None:
    """Return the tensor that a reference begins with, if it does."""
    root = root_of(ref)
    return root.name if isinstance(root, Tensor) else None


def renamed(ref: Ref, name: str) -> Ref:
    """Return a reference that begins with another tensor and changes it as before."""
    root = root_of(ref)
    return rerooted(ref, replace(root, name=name)) if isinstance(root, Tensor) else ref


def root_of(ref: Ref) -> Ref:
    while isinstance(ref, Derived):
        ref = ref.sources[0]
    return ref


def same_shape(graph: Graph, name: str, other: str) -> bool:
    """Tell whether two tensors are there and fit in each other's place."""
    stored = graph.stored
    return name in stored and other in stored and stored[name].shape == stored[other].shape


def once(make: Callable[[Graph], Any]) -> Callable[[Graph], Any]:
    """Remember what was found in the last graph: every rewrite of every call asks again."""
    last: list[Any] = [None, None]

    def found(graph: Graph) -> Any:
        if last[0] is None or last[0]() is not graph:
            last[:] = weakref.ref(graph), make(graph)
        return last[1]

    return found


class Room:
    """What changes made of matrices, the last of all of them."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0  # bytes
        self.made: dict[Any, tuple[Any, Any]] = {}

    def find(self, key: Any, weight: Any) -> Any:
        """Return what was made of a matrix, None if it is not kept; ids are used again."""
        source, made = self.made.get(key, (None, None))
        return made if source is not None and source() is weight else None

    def keep(self, key: Any, weight: Any, made: Any) -> None:
        self.drop(key)
        if nbytes(made) > self.most:
            return
        while self.made and self.size + nbytes(made) > self.most:
            self.drop(next(iter(self.made)))
        self.made[key] = weakref.ref(weight), made
        self.size += nbytes(made)

    def drop(self, key: Any) -> None:
        if key in self.made:
            self.size -= nbytes(self.made.pop(key)[1])


ROOM = Room(KEPT)


@dataclass(frozen=True)
class Kept:
    """A change that remembers what it made of the last matrices, as long as these live.

    For changes that cost more than the product with the matrix, such as packing it. All share one
    room: there are dozens of them.
    """

    change: Change

    def __call__(self, ops: Any, weight: Any) -> Any:
        key = self, id(weight)
        made = ROOM.find(key, weight)
        if made is None:
            made = self.change(ops, weight)
            ROOM.keep(key, weight, made)
        return made


def nbytes(weight: Any) -> int:
    """Return the bytes of a matrix, packed or not."""
    if isinstance(weight, np.ndarray):
        return weight.nbytes
    return sum(part.nbytes for part in vars(weight).values() if isinstance(part, np.ndarray))
