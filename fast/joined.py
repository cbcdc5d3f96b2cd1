"""Matrices of the same input that lie in one, so that one product serves them all."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.checkpoint.checkpoint import Checkpoint, StoredFormat

# Projections that models give the same input: the last parts of their paths.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
FIRST = {group[0]: group for group in TOGETHER}
Paths = tuple[str, ...]


@dataclass(frozen=True)
class Joined:
    """One matrix with the rows of several, and one bias or none.

    `paths` are those of the modules, `parts` their weights and biases by their names, which are
    views of it, and `columns` where each one's outputs stand.
    """

    paths: Paths
    weight: Any
    bias: Any
    parts: tuple[tuple[str, Any], ...]
    columns: tuple[slice, ...]

    def serves(self, weights: Mapping[str, Any], adapters: Mapping[str, Any]) -> bool:
        """Tell whether a model still has these parts, no others in their place and none adapted."""
        for name, part in self.parts:  # for each token: a generator would take twice as long
            if weights.get(name) is not part:
                return False
        return all(adapters.get(path) is None for path in self.paths)


@dataclass(frozen=True)
class Serving:
    """The joined matrices that may stand for what a model multiplies by now.

    Each is looked at when it is asked for, which no token does that goes through layers in one go.
    """

    joined: Mapping[Paths, Joined]
    weights: Mapping[str, Any]
    adapters: Mapping[str, Any]

    def get(self, paths: Paths) -> Joined | None:
        """Return the matrix of some modules; None if there is none, or it does not serve."""
        one = self.joined.get(paths)
        return one if one is not None and one.serves(self.weights, self.adapters) else None


def rooms_for(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return memory to read to, by the names of the files' tensors.

    What models ask for together lies there below each other, so that `join` has nothing to copy.
    """
    rooms: dict[str, np.ndarray] = {}
    for paths in groups(checkpoint.names):
        names = [f"{path}.weight" for path in paths]
        if all(map(checkpoint.has, names)) and matrices_alike(map(checkpoint.stored, names)):
            for parts in zip(*map(checkpoint.parts, names), strict=False):
                rooms |= cut(parts)
    return rooms


def matrices_alike(formats: Iterable[StoredFormat]) -> bool:
    """Whether all are stored in one way, and none is a stack: those may be larger than memory."""
    found = {replace(one, shape=one.shape[1:], nbytes=0) for one in formats}
    return len(found) == 1 and len(found.pop().shape) == 1


def cut(parts: Sequence[tuple[str, int]]) -> dict[str, np.ndarray]:
    """Cut one piece of memory into rooms of so many bytes."""
    ends = np.cumsum([size for _, size in parts]).tolist()
    room = np.empty(ends[-1], np.uint8)
    return {name: room[end - size : end] for (name, size), end in zip(parts, ends, strict=True)}


def groups(names: Iterable[str]) -> list[Paths]:
    """Return the modules that models ask for together, where the first of them has a weight."""
    found = []
    for name in names:
        base, _, last = name.removesuffix(".weight").rpartition(".")
        if name.endswith(".weight") and last in FIRST:
            found.append(tuple(f"{base}.{one}" for one in FIRST[last]))
    return found


def join_all(weights: dict[str, Any], fits: Callable[[Any], bool]) -> dict[Paths, Joined]:
    """Join what models ask for together; `weights` then holds views of what was joined.

    Matrices that do not fit, or are not stored alike, or only some of which have a bias, stay as
    they are.
    """
    found = {}
    for paths in groups(weights):
        joined = join(weights, paths) if fits(weights[f"{paths[0]}.weight"]) else None
        if joined is not None:
            found[paths] = joined
            weights.update({name: part for name, part in joined.parts if part is not None})
    return found


def join(weights: Mapping[str, Any], paths: Paths) -> Joined | None:
    """Join the matrices of some modules, and their biases; None if they cannot be."""
    matrices: list[Any] = [weights.get(f"{path}.weight") for path in paths]
    biases: list[Any] = [weights.get(f"{path}.bias") for path in paths]
    if not alike(matrices) or not (alike(biases) or all(bias is None for bias in biases)):
        return None
    ends = np.cumsum([matrix.shape[0] for matrix in matrices]).tolist()
    columns = tuple(slice(*both) for both in zip([0, *ends[:-1]], ends, strict=True))
    weight = of_arrays(below, matrices)
    bias = None if biases[0] is None else np.concatenate(biases)
    parts = []
    for path, part in zip(paths, columns, strict=True):
        view = of_arrays(lambda arrays, part=part: arrays[0][part], [weight])
        parts.append((f"{path}.weight", view))
        parts.append((f"{path}.bias", None if bias is None else bias[part]))
    return Joined(paths, weight, bias, tuple(parts), columns)


def below(arrays: list[np.ndarray]) -> np.ndarray:
    """Return arrays below each other: the memory itself where they fill it so, or else a copy."""
    room, first = arrays[0].base, arrays[0]
    size = sum(one.nbytes for one in arrays)
    if not isinstance(room, np.ndarray) or size != room.nbytes or not in_order(arrays, room):
        return np.concatenate(arrays)
    return room.view(first.dtype).reshape(-1, *first.shape[1:])


def in_order(arrays: list[np.ndarray], room: np.ndarray) -> bool:
    """Whether all are views of this memory, each beginning where the one before it ends."""
    begin = room.ctypes.data
    for one in arrays:
        if one.base is not room or one.ctypes.data != begin or not one.flags.c_contiguous:
            return False
        begin += one.nbytes
    return True


def alike(tensors: Sequence[Any]) -> bool:
    """Whether all are there, stored in one way, and differ at most in their number of rows."""
    return len({form(tensor) for tensor in tensors}) == 1 and form(tensors[0]) is not None


def form(tensor: Any) -> tuple[Any, ...] | None:
    """Say how a matrix or a vector is stored; None if there is nothing to join."""
    if tensor is None or len(tensor.shape) > 2:
        return None
    told = (
        (
            (one.dtype, one.shape[1:]) if isinstance(one, np.ndarray) else one
            for one in ([getattr(tensor, field.name) for field in fields(tensor)])
        )
        if isinstance(tensor, Packed)
        else ((tensor.dtype, tensor.shape[1:]),)
    )
    return type(tensor), *told


def of_arrays(make: Callable[[list[Any]], Any], tensors: Sequence[Any]) -> Any:
    """Make an array of arrays, or a packed tensor of packed ones, field by field."""
    first = tensors[0]
    if not isinstance(first, Packed):
        return make(list(tensors))
    each = {field.name: [getattr(one, field.name) for one in tensors] for field in fields(first)}
    made = {name: make(some) for name, some in each.items() if isinstance(some[0], np.ndarray)}
    return replace(first, **made)
