"""Tensors that hold all layers, as a scan over them leaves: with one axis more, along the layers.

It stands in front, or behind the batch. They are taken apart, and each part has the name with the
layer's number in it.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.align import move_between
from lockstep.parity.naming.grouping import LAYER
from lockstep.parity.naming.names import parted

Shape = tuple[int, ...]
NUMBER = re.compile(r"(?:^|[./]|layers?_?|blocks?_?|h_?)[0-9]+(?:[./]|$)")
LAYERS = re.compile(r"(.*?(?:^|[./_])(?:layers?|blocks?|h))(?:[./](.*))?")
STREAMS = "hidden_states"  # of which there is one more than there are layers
SAID = ("an axis of {layers} layers taken apart in {count} tensors",
        "an axis of {layers} layers behind the batch taken apart in {count} tensors")  # fmt: skip
DOUBT = "{count} tensors left whole: of {layers} layers and {layers} rows, which axis is which?"


@dataclass(frozen=True)
class Stacks:
    """How stacks are told from other tensors: by the taps that a model has, with their shapes."""

    known: Mapping[str, Shape]

    @cached_property
    def layers(self) -> int:
        return len([tap for tap in self.known if LAYER.fullmatch(tap)])

    @cached_property
    def wanted(self) -> set[Shape]:
        """The shapes of what a layer has."""
        return {shape for tap, shape in self.known.items() if LAYER.match(tap)}

    def axes(self, name: str, shape: Shape) -> list[int]:
        """Return the axes, first or second, that may be the layers'; no number is in the name."""
        _, path = parted(name)
        if NUMBER.search(path) or len(shape) < 3:
            return []
        more = path.rpartition(".")[2] == STREAMS
        sizes = (self.layers, self.layers + 1) if more else (self.layers,)
        return [
            axis
            for axis in (0, 1)
            if shape[axis] in sizes
            and fits(without(shape, axis), self.wanted)
            and (axis == 0 or not self.are_heads(path, shape))
        ]

    def are_heads(self, path: str, shape: Shape) -> bool:
        """Say whether what seems to be layers may be the heads, or tokens, of one tap."""
        alike = {one for one in self.known.values() if len(one) == len(shape)}
        return LAYERS.fullmatch(path) is None and fits(shape, alike)

    def in_doubt(self, shape: Shape, axes: Collection[int]) -> bool:
        """Say whether a batch may be the layers, and the layers the batch."""
        batch = self.known.get("logits", (1,))[0]
        return len(axes) > 1 and shape[0] == batch > 1


def taken_apart(
    dump: Dump, known: Mapping[str, Shape], tap_of: Callable[[str], str]
) -> tuple[Dump, list[str]]:
    """Return a dump of single layers, and lines to say so.

    `known` has the model's taps with their shapes, `tap_of` says which of them a name means.
    """
    kind = Stacks(known)
    found = {
        name: (shape, axes)
        for name, shape in dump.shapes.items()
        if tap_of(name) not in known and (axes := kind.axes(name, shape))
    }
    found = {name: one for name, one in found.items() if is_free(name, one, dump)}
    doubtful = {name for name, one in found.items() if kind.in_doubt(*one)}
    stacks = {name: axes[0] for name, (_, axes) in found.items() if name not in doubtful}
    stacks |= dict(of_steps(dump, stacks))
    told = [
        SAID[axis].format(count=count, layers=kind.layers)
        for axis in (0, 1)
        if (count := [*stacks.values()].count(axis))
    ]
    told += [DOUBT.format(count=len(doubtful), layers=kind.layers)] * bool(doubtful)
    return (in_parts(dump, stacks) if stacks else dump), told


def of_steps(dump: Dump, stacks: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield what later steps have of the prompt's stacks: `known` has not their shapes."""
    for name, shape in dump.shapes.items():
        step, path = parted(name)
        if not step or path not in stacks or len(shape) != len(dump.shapes[path]):
            continue
        axis = stacks[path]
        if shape[axis] == dump.shapes[path][axis] and is_free(name, (shape, [axis]), dump):
            yield name, axis


def in_parts(dump: Dump, stacks: Mapping[str, int]) -> Dump:
    """Return a dump in which each stack is one tensor for each place of its axis."""
    places = {
        one: (name, row)
        for name, axis in stacks.items()
        for one, row in named(name, dump.shapes[name][axis])
    }
    kept = lru_cache(maxsize=1)(dump.read)  # parts are asked for one after the other

    def read(name: str) -> np.ndarray:
        whole, row = places.get(name, (name, None))
        return dump.read(name) if row is None else kept(whole).take(row, axis=stacks[whole])

    shapes = {name: shape for name, shape in dump.shapes.items() if name not in stacks}
    shapes |= {one: without(dump.shapes[name], stacks[name]) for one, (name, _) in places.items()}
    return replace(dump, shapes=shapes, read=read, parted=None)


def without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def fits(shape: Shape, wanted: Collection[Shape]) -> bool:
    return any(move_between(shape, one) is not None for one in wanted)


def is_free(name: str, stack: tuple[Shape, Sequence[int]], dump: Dump) -> bool:
    """Say whether no part has the name of a tensor that is there."""
    shape, axes = stack
    return all(one not in dump.shapes for one, _ in named(name, shape[axes[0]]))


def named(name: str, rows: int) -> Iterator[tuple[str, int]]:
    """Yield the names of parts: the number stands behind the word for layers, if there is one."""
    step, path = parted(name)
    found = LAYERS.fullmatch(path)
    for row in range(rows):
        if found is None and path.rpartition(".")[2] != STREAMS:
            yield f"{step}layers.{row}.{path}", row
        elif found is None:
            yield f"{step}{path}.{row}", row
        else:
            yield f"{step}{found[1]}.{row}" + (f".{found[2]}" if found[2] else ""), row
