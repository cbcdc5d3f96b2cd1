"""The port's values by number, read from the dump when they are asked for."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile

import numpy as np

from lockstep.parity.explaining.steps.steps import Joined
from lockstep.parity.graph import Graph

KEPT = 64 << 20  # bytes of values that need not be read again
LARGE = 1 << 20  # bytes of a value that is made, for it to lie in a file


@dataclass
class Dumped(MutableMapping[int, np.ndarray]):
    """The values of a dump: `taps` says which tensor has each, `own` are those put in its place.

    What was asked for last is kept; a dump may be larger than memory. `sides` counts no moves here:
    each value is read many times.
    """

    sides: Joined
    graph: Graph
    taps: Mapping[int, str] = field(default_factory=dict)
    own: dict[int, np.ndarray] = field(default_factory=dict)
    kept: OrderedDict[int, np.ndarray] = field(default_factory=OrderedDict)
    size: int = 0

    def __post_init__(self) -> None:
        self.sides = replace(self.sides, moved=Counter())

    def __getitem__(self, number: int) -> np.ndarray:
        if number in self.own:
            return self.own[number]
        if number not in self.kept:
            self.keep(number, self.sides.read(self.taps[number], self.graph.shapes[number]))
        self.kept.move_to_end(number)
        return self.kept[number]

    def keep(self, number: int, value: np.ndarray) -> None:
        self.kept[number] = value
        self.size += value.nbytes
        while self.size > KEPT and len(self.kept) > 1:
            self.size -= self.kept.popitem(last=False)[1].nbytes

    def __setitem__(self, number: int, value: np.ndarray) -> None:
        self.own[number] = value

    def __delitem__(self, number: int) -> None:
        raise TypeError("a dump keeps what it has")

    def __contains__(self, number: object) -> bool:
        return number in self.own or number in self.taps

    def __iter__(self) -> Iterator[int]:
        return iter(self.taps.keys() | self.own.keys())

    def __len__(self) -> int:
        return len(self.taps.keys() | self.own.keys())

    def __or__(self, other: Mapping[int, np.ndarray]) -> Dumped:
        """Return the same values, but for some."""
        return Dumped(self.sides, self.graph, self.taps, self.own | dict(other))


@dataclass
class Beside(MutableMapping[int, np.ndarray]):
    """The values of a dump, but for some; the dump keeps what is read, once for all."""

    dumped: Mapping[int, np.ndarray]
    own: dict[int, np.ndarray] = field(default_factory=dict)

    def __getitem__(self, number: int) -> np.ndarray:
        return self.own[number] if number in self.own else self.dumped[number]

    def __setitem__(self, number: int, value: np.ndarray) -> None:
        self.own[number] = value

    def __delitem__(self, number: int) -> None:
        raise TypeError("a dump keeps what it has")

    def __contains__(self, number: object) -> bool:
        return number in self.own or number in self.dumped

    def __iter__(self) -> Iterator[int]:
        return iter(self.dumped)

    def __len__(self) -> int:
        return len(self.dumped)

    def __or__(self, other: Mapping[int, np.ndarray]) -> Beside:
        return Beside(self.dumped, self.own | dict(other))


def on_disk(value: np.ndarray) -> np.ndarray:
    """Return the same values, large ones in a file without a name, so that memory may let go."""
    if value.nbytes < LARGE:
        return value
    with TemporaryFile() as file:
        kept = np.memmap(file, value.dtype, "w+", shape=value.shape)
    kept[...] = value
    return kept
