"""Matrices of the same input that lie in one, so that one product serves them all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.block_tensor import Packed

# Projections that models give the same input: the last parts of their paths.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
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


def join_all(weights: dict[str, Any], fits: Callable[[Any], bool]) -> dict[Paths, Joined]:
    """Join what models ask for together; `weights` then holds views of what was joined.

    Matrices that do not fit, or are not stored alike, or only some of which have a bias, stay as
    they are.
    """
    found, first = {}, tuple(f".{group[0]}.weight" for group in TOGETHER)
    for name in [name for name in weights if name.endswith(first)]:
        base, _, last = name.removesuffix(".weight").rpartition(".")
        group = next(group for group in TOGETHER if group[0] == last)
        paths = tuple(f"{base}.{one}" for one in group)
        joined = join(weights, paths) if fits(weights[name]) else None
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
    weight = of_arrays(np.concatenate, matrices)
    bias = None if biases[0] is None else np.concatenate(biases)
    parts = []
    for path, part in zip(paths, columns, strict=True):
        view = of_arrays(lambda arrays, part=part: arrays[0][part], [weight])
        parts.append((f"{path}.weight", view))
        parts.append((f"{path}.bias", None if bias is None else bias[part]))
    return Joined(paths, weight, bias, tuple(parts), columns)


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
