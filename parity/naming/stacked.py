"""Tensors that hold all layers, as a scan over them leaves: with one axis more, along the layers.

They are taken apart, and each part has the name with the layer's number in it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from lockstep.parity.dumps.dump import Dump
from lockstep.parity.naming.align import move_between
from lockstep.parity.naming.grouping import LAYER
from lockstep.parity.naming.names import parted

Shape = tuple[int, ...]
NUMBER = re.compile(r"(?:^|[./]|layers?_?|blocks?_?|h_?)[0-9]+(?:[./]|$)")
LAYERS = re.compile(r"(.*?(?:^|[./_])(?:layers?|blocks?|h))(?:[./](.*))?")
STREAMS = "hidden_states"  # of which there is one more than there are layers
SAID = "an axis of {layers} layers taken apart in {count} tensors"


def taken_apart(
    dump: Dump, known: Mapping[str, Shape], tap_of: Callable[[str], str]
) -> tuple[Dump, list[str]]:
    """Return a dump of single layers, and a line to say so.

    `known` has the model's taps with their shapes, `tap_of` says which of them a name means.
    """
    count = len([tap for tap in known if LAYER.fullmatch(tap)])
    wanted = {shape for tap, shape in known.items() if LAYER.match(tap)}
    stacks = {
        name: shape[0]
        for name, shape in dump.shapes.items()
        if tap_of(name) not in known and is_stack(name, shape, count, wanted)
    }
    stacks = {name: rows for name, rows in stacks.items() if is_free(name, rows, dump)}
    if not stacks:
        return dump, []
    places = {one: (name, row) for name, rows in stacks.items() for one, row in named(name, rows)}
    kept = lru_cache(maxsize=1)(dump.read)  # parts are asked for one after the other

    def read(name: str) -> np.ndarray:
        whole, row = places.get(name, (name, None))
        return dump.read(name) if row is None else kept(whole)[row]

    shapes = {name: shape for name, shape in dump.shapes.items() if name not in stacks}
    shapes |= {one: dump.shapes[name][1:] for one, (name, _) in places.items()}
    told = SAID.format(count=len(stacks), layers=count)
    return replace(dump, shapes=shapes, read=read, parted=None), [told]


def is_stack(name: str, shape: Shape, count: int, wanted: set[Shape]) -> bool:
    """Say whether a tensor has a first axis of layers, and no number of one in its name."""
    _, path = parted(name)
    streams = path.rpartition(".")[2] == STREAMS and shape[:1] == (count + 1,)
    if NUMBER.search(path) or len(shape) < 3 or not (streams or shape[0] == count):
        return False
    return any(move_between(shape[1:], one) is not None for one in wanted)


def is_free(name: str, rows: int, dump: Dump) -> bool:
    """Say whether no part has the name of a tensor that is there."""
    return all(one not in dump.shapes for one, _ in named(name, rows))


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
