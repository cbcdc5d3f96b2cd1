"""A text of which a port dumped some tokens: its values there, the oracle's elsewhere.

The oracle's own run is made in each way of rounding, so that what rounding adds up to in the other
tokens is noise, as it is in the port. It goes to a temporary file, a value at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO

import numpy as np

from lockstep.parity.explaining.excerpts.reading import Row
from lockstep.parity.graph import Evaluator

KEPT = 64 << 20  # bytes of values that are put together, and kept


@dataclass
class Others:
    """One run of the oracle over all tokens; `needed` are the values that are asked for, in order.

    Each is computed once, from the needed ones before it, and read from a file from then on.
    """

    run: Evaluator
    needed: Sequence[int]
    file: IO[bytes]
    made: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.run.dumped = self.made

    def __getitem__(self, number: int) -> np.ndarray:
        if number not in self.made:
            for one in self.needed:
                if one <= number and one not in self.made:
                    self.made[one] = self.written(self.run.target(one))
        return self.made[number]

    def value(self, number: int) -> np.ndarray:
        """Return any value, computed from those that are written."""
        return self.made[number] if number in self.made else self.run.target(number)

    def written(self, value: np.ndarray) -> np.ndarray:
        """Put a value behind the others in the file, and return it as it lies there."""
        start, kind = self.file.seek(0, 2), np.float64 if value.itemsize == 8 else np.float32
        self.file.write(np.ascontiguousarray(value, kind).data)
        self.file.flush()
        return np.memmap(self.file, kind, "r", start, value.shape)


@dataclass
class Patched(MutableMapping[int, np.ndarray]):
    """Values of the whole text by number: the port's where it has tokens, the oracle's elsewhere.

    `some` are the port's of its tokens alone, `known` those that it has of all, `own` are whole
    values put in the place of these. Those `apart` have zeros elsewhere: nobody takes them.
    """

    numbers: Sequence[int]
    some: Mapping[int, np.ndarray]
    known: Mapping[int, np.ndarray]
    others: Others
    axes: Sequence[tuple[int, ...]]
    places: Sequence[Row]
    apart: frozenset[int] = frozenset()
    own: dict[int, np.ndarray] = field(default_factory=dict)
    kept: OrderedDict[int, np.ndarray] = field(default_factory=OrderedDict)

    def __getitem__(self, number: int) -> np.ndarray:
        if number in self.own:
            return self.own[number]
        if number in self.known:
            return self.known[number]
        if number not in self.kept:
            self.kept[number] = self.patched(number, self.some[number])
            while sum(one.nbytes for one in self.kept.values()) > KEPT and len(self.kept) > 1:
                self.kept.popitem(last=False)
        self.kept.move_to_end(number)
        return self.kept[number]

    def __setitem__(self, number: int, value: np.ndarray) -> None:
        self.own[number] = value

    def __delitem__(self, number: int) -> None:
        raise TypeError("a text keeps what it has")

    def __or__(self, other: Mapping[int, np.ndarray]) -> Patched:
        """Return the same values, but for some."""
        return replace(self, own=self.own | dict(other), kept=OrderedDict())

    def __contains__(self, number: object) -> bool:
        return number in self.numbers

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def patched(self, number: int, mine: np.ndarray) -> np.ndarray:
        """Put a value together: a copy of the oracle's, with the port's rows in it."""
        if number in self.apart:
            value = np.zeros(self.others.run.graph.shapes[number], self.others.run.dtype)
        else:
            value = np.array(self.others[number])
        axis = self.axes[number][0]
        for row, (here, there) in enumerate(self.places):
            own = np.moveaxis(value[row], axis - 1, 0)
            own[there] = np.moveaxis(mine[row], axis - 1, 0)[here]
        return value
