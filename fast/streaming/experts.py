"""The experts of a checkpoint as stacks of which only what is visited is in memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import numpy as np

from lockstep.fast.streaming.shelf import Key
from lockstep.fast.streaming.store import ExpertStore
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.errors import InputError


class Backend(Protocol):
    """What takes a stored tensor to what is held, in any thread, and that to what is computed."""

    def held(self, tensor: Any) -> Any: ...
    def given(self, held: Any) -> Any: ...


@dataclass(frozen=True)
class StreamedStack:
    """One matrix of every expert of a layer, (experts, outputs, inputs)."""

    shape: tuple[int, ...]
    path: str  # of the layer's experts
    name: str
    store: ExpertStore
    given: Callable[[Any], Any]

    def __getitem__(self, index: int) -> Any:
        return self.given(self.store.get((self.path, index))[self.name])


class StreamedExperts:
    """All stacks of a checkpoint, by name, over one store; and what a run tells it.

    Raises: InputError if the model has no experts, or the budget has no room for those that a token
    visits in a layer.
    """

    def __init__(self, checkpoint: Checkpoint, backend: Backend, budget: int):
        layers = layers_of(checkpoint)
        sizes = {path: expert_size(checkpoint, names, backend) for path, names in layers.items()}
        check_budget(checkpoint, budget, sizes)
        stored = {path: stored_size(checkpoint, names) for path, names in layers.items()}
        self.whole = sum(checkpoint.stored(name).nbytes for one in layers.values() for name in one)

        def read(key: Key) -> dict[str, Any]:
            found = expert(checkpoint, layers[key[0]], key[1], backend)
            check_size(checkpoint, key, size_of(found), sizes[key[0]])
            return found

        self.store = ExpertStore(
            read,
            size=lambda key: sizes[key[0]],
            stored=lambda key: stored[key[0]],
            budget=budget,
        )
        self.stacks = {
            name: StreamedStack(
                checkpoint.stored(name).shape, path, name, self.store, backend.given
            )
            for path, names in layers.items()
            for name in names
        }

    def visit(self, path: str, routing: np.ndarray) -> None:
        """Have the experts read that a layer's tokens chose: `routing` (..., X) is 0 for others."""
        self.store.expect(path, visited(routing))

    def foresee(self, path: str, routing: np.ndarray) -> None:
        """Have those read that the next layer may choose."""
        self.store.guess(path, visited(routing))

    def report(self) -> dict[str, Any]:
        """Return what the store counted, and the bytes of all experts on the disk."""
        return {"experts": self.whole} | self.store.report()


def layers_of(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Return the names of each layer's stacks, by the path of its experts."""
    found: dict[str, list[str]] = {}
    for name in checkpoint.names:
        if len(checkpoint.stored(name).shape) == 3:
            found.setdefault(name.removesuffix(".weight").rpartition(".")[0], []).append(name)
    return found


def expert(
    checkpoint: Checkpoint, names: list[str], index: int, backend: Backend
) -> dict[str, Any]:
    """Read the matrices of one expert, by the names of their stacks."""
    parts = {name: checkpoint.tensor_part(name, None, None, matrix=index) for name in names}
    return {name: backend.held(part) for name, part in parts.items()}


def expert_size(checkpoint: Checkpoint, names: list[str], backend: Backend) -> int:
    """Return the bytes that an expert of this layer takes, by the first one."""
    return size_of(expert(checkpoint, names, 0, backend))


def size_of(parts: Mapping[str, Any]) -> int:
    return sum(map(nbytes, parts.values()))


def stored_size(checkpoint: Checkpoint, names: list[str]) -> int:
    """Return the bytes that an expert of this layer takes on the disk."""
    found = map(checkpoint.stored, names)
    return sum(one.nbytes // one.shape[0] for one in found)


def nbytes(weight: Any) -> int:
    if not is_dataclass(weight):
        return getattr(weight, "nbytes", 0)
    return sum(nbytes(getattr(weight, one.name)) for one in fields(weight))


def check_budget(checkpoint: Checkpoint, budget: int, sizes: Mapping[str, int]) -> None:
    if not sizes:
        raise InputError(checkpoint.path, "has no experts that an expert budget could hold")
    config = checkpoint.config
    chosen = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", 1)
    least = max(2, chosen + 1) * max(sizes.values())
    if budget < least:
        what = f"expert budget is {budget} bytes, but should be at least {least}"
        raise InputError(checkpoint.path, what, f"{chosen} experts of a layer, and the next one")


def check_size(checkpoint: Checkpoint, key: Key, size: int, first: int) -> None:
    """Keep the budget where the tensors of experts are stored one by one, and not all alike."""
    if size > first:
        what = f"expert {key[1]} takes {size} bytes in memory, but the first one {first}"
        raise InputError(
            checkpoint.path, f"{what}: a budget needs experts that are stored alike", key[0]
        )


def visited(routing: np.ndarray) -> list[int]:
    """Return which experts any token chose, by rising number."""
    return np.flatnonzero(routing.reshape(-1, routing.shape[-1]).any(axis=0)).tolist()
