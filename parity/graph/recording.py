"""Record the graph of a model by running its file on shapes: nothing is computed, nothing read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from lockstep.parity.graph.call import Call, Constant, Ref, Tensor, Value
from lockstep.parity.graph.graph import Graph
from lockstep.parity.graph.stretched import stretched
from lockstep.parity.replaying.recorder import Node, Recorder, Stage
from lockstep.parity.replaying.shape_ops import SHAPE_OPS, blank
from lockstep.parity.replaying.taps import STANDINS
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.model import Model

LAYER = re.compile(r"(?:model\.layers|transformer\.h)\.(\d+)\.?")


class Named:
    """A checkpoint whose tensors are mere shapes, and which remembers what it handed out."""

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint = checkpoint
        self.handed: dict[int, tuple[Any, Tensor]] = {}  # by identity, kept so that it stays one's

    def __getattr__(self, name: str) -> Any:
        return getattr(self.checkpoint, name)

    def tensor(self, name: str) -> np.ndarray:
        return self.noted(blank(*self.checkpoint.stored(name).shape), Tensor(name))

    def matrix(self, name: str) -> np.ndarray:
        return self.tensor(name)

    def tensor_at(self, name: str, rows: list[int]) -> np.ndarray:
        shape = len(rows), *self.checkpoint.stored(name).shape[1:]
        return self.noted(blank(*shape), Tensor(name, rows=tuple(rows)))

    def stack(self, name: str) -> Any:
        return self.noted(self.checkpoint.stack(name), Tensor(name, stacked=True))

    def noted(self, handed: Any, tensor: Tensor) -> Any:
        self.handed[id(handed)] = handed, tensor
        return handed


def record(
    model: Model,
    tokens: np.ndarray,
    positions: np.ndarray | None = None,
    *,
    steps: tuple[int, ...] = (),
) -> Graph:
    """Return the graph of a prefill of `model` over the tokens (B, L).

    It is walked twice: with sizes that nothing else has, which shows the axes of the tokens, and
    with those of the prompt. `steps` says at which tokens a port called its model anew.
    """
    taken = asdict(model.config).values()
    batch, length = [size for size in STANDINS if size not in taken][:2]
    nothing = np.zeros((batch, length), int)  # all at position 0, which every model has
    stood_in, _ = walked(model, nothing, nothing)
    axes = tuple(token_axes(node.output.shape, length) for node in stood_in.nodes)
    positions = (
        np.arange(tokens.shape[1])[None].repeat(len(tokens), 0) if positions is None else positions
    )
    stage, handed = walked(model, tokens, positions)
    graph = Graph(
        calls=tuple(calls_of(stage, named_references(handed, model), tokens.shape)),
        shapes=tuple(node.output.shape for node in stage.nodes),
        token_axes=axes,
        config=model.config,
        batched=tuple(node.output.shape[:1] == (batch,) for node in stood_in.nodes),
        stored={name: model.checkpoint.stored(name) for name in model.checkpoint.names},
        unused=frozenset(model.checkpoint.unused),
        steps=steps,
    )
    return stretched(graph, positions)


def walked(
    model: Model, tokens: np.ndarray, positions: np.ndarray
) -> tuple[Stage, dict[int, tuple[Any, Tensor]]]:
    recorder, named = Recorder(SHAPE_OPS), Named(model.checkpoint)
    shapes: Any = named
    walker = Model(shapes, dtype="float32", ops=recorder, adapters=model.adapters)
    for _ in walker.stages(tokens, positions=positions, trace=recorder.tap):
        pass
    return recorder.take(), named.handed


def token_axes(shape: tuple[int, ...], length: int) -> tuple[int, ...]:
    return tuple(axis for axis, size in enumerate(shape) if size == length)


def named_references(handed: Mapping[int, tuple[Any, Tensor]], model: Model) -> dict[int, Ref]:
    """Return what has a name, by identity: tensors of the checkpoint, and what adapters hold."""
    found: dict[int, Ref] = {key: tensor for key, (_, tensor) in handed.items()}
    found |= {id(one): Constant(one, name=name) for name, one in model.adapters.weights.items()}
    for path, adapter in model.adapters.modules.items():
        for part in ("a", "b", "magnitude"):
            factor = getattr(adapter, part)
            if factor is not None:
                found[id(factor)] = Constant(factor, name=f"{path}.{part}")
    return found


def calls_of(stage: Stage, named: dict[int, Ref], prompt: tuple[int, ...]) -> list[Call]:
    """Turn recorded nodes into calls that refer to each other by number."""
    numbers = {id(node.output): number for number, node in enumerate(stage.nodes)}
    taps: dict[int, list[str]] = {}
    for name, value in stage.taps.items():
        taps.setdefault(numbers[id(value)], []).append(name)
    places = places_of(stage.nodes, numbers, named, taps)

    def reference(value: Any) -> Ref:
        if id(value) in numbers:
            return Value(numbers[id(value)])
        rows = 1 if getattr(value, "shape", None) == prompt else None
        return named.get(id(value)) or Constant(value, rows)

    return [
        Call(number, node.op, of_whole_table(tuple(map(reference, node.inputs))), node.options,
             tuple(taps.get(number, ())), *parted(places[number]), len(node.inputs))
        for number, node in enumerate(stage.nodes)
    ]  # fmt: skip


def of_whole_table(inputs: tuple[Ref, ...]) -> tuple[Ref, ...]:
    """Let a lookup take its ids from the whole table, whatever rows of it were read."""
    match inputs:
        case (Constant(value=places), Tensor(rows=tuple(rows)) as table):
            return Constant(np.array(rows)[places], 1), replace(table, rows=None)
    return inputs


def places_of(
    nodes: list[Node], numbers: dict[int, int], named: dict[int, Ref], taps: dict[int, list[str]]
) -> list[str]:
    """Return the module that each call belongs to: of its tap, its weight, or its first taker."""
    places = [""] * len(nodes)
    for number in reversed(range(len(nodes))):
        node = nodes[number]
        found = (named.get(id(value)) for value in node.inputs)
        weights = [ref.name.rpartition(".")[0] for ref in found if isinstance(ref, Tensor)]
        own = taps.get(number) or weights
        places[number] = own[0] if own else places[number]
        for value in node.inputs:
            if id(value) in numbers:
                places[numbers[id(value)]] = places[number]
    return places


def parted(path: str) -> tuple[str, int | None]:
    """Split `model.layers.3.mlp.up_proj` into `mlp.up_proj` and 3."""
    found = LAYER.match(path)
    return (path, None) if found is None else (path[found.end() :], int(found[1]))
