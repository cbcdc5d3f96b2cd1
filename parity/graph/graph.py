"""The calls of a forward pass in order, and the pieces that a dump cuts them into."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from lockstep.parity.graph.call import Call, Derived, Ref, Value
from lockstep.reference.checkpoint.checkpoint import StoredFormat

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A value that a port dumped, and the calls between it and the port's nearest values.

    `calls` are in the order of computation, the last one is that of the target.
    """

    target: int
    calls: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """Every call of one forward pass, with the shape of what it returns and its token axes.

    `token_axes[n]` are the axes of value n that run over the tokens of the prompt; computing the
    first rows alone is exact, since no token sees a later one. `batched[n]` says that the first
    axis of value n is the batch. `stored` says of each tensor of the checkpoint how it lies in its
    file, `unused` are those beside them that no layer needs. `rewritten` keeps calls as bugs leave
    them, for whoever rewrites the same ones again. `steps` are the tokens that a later call of the
    port begins with, which went on from its cache; none if it read the whole text at once. `pads`
    (B, L) are the tokens that only fill up a row of a batch; None if there are none. `targets` are
    the values that may be judged, None if all are: of some tokens alone, not all can be. `fused`
    are the modules of which a port is known to make several projections at once.
    """

    calls: tuple[Call, ...]
    shapes: tuple[Shape, ...]
    token_axes: tuple[tuple[int, ...], ...]
    config: Any = field(repr=False)
    stored: Mapping[str, StoredFormat] = field(default_factory=dict, repr=False)
    batched: tuple[bool, ...] = field(default=(), repr=False)
    unused: Collection[str] = field(default=(), repr=False)
    rewritten: dict[Any, Call | None] = field(default_factory=dict, repr=False, compare=False)
    steps: tuple[int, ...] = ()
    pads: np.ndarray | None = field(default=None, repr=False, compare=False)
    targets: frozenset[int] | None = None
    fused: frozenset[str] = frozenset()

    @cached_property
    def taps(self) -> dict[str, int]:
        """The call that makes each tap, in the order of computation."""
        return {name: call.number for call in self.calls for name in call.taps}

    @property
    def tap_shapes(self) -> dict[str, Shape]:
        """What shape each tap has."""
        return {name: self.shapes[number] for name, number in self.taps.items()}

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """The calls that take each value."""
        found: list[list[int]] = [[] for _ in self.calls]
        for call in self.calls:
            for number in self.sources(call.number):
                found[number].append(call.number)
        return tuple(map(tuple, found))

    @cached_property
    def taken(self) -> tuple[frozenset[int], ...]:
        """The values that each call takes."""
        return tuple(frozenset(values_of(call)) for call in self.calls)

    def sources(self, number: int) -> frozenset[int]:
        """Return the values that a call takes."""
        return self.taken[number]

    def piece(self, target: int, dumped: Collection[int]) -> Piece:
        """Return what lies between a value and the dumped values before it."""
        return Piece(target, tuple(sorted(self.needed([target], dumped))))

    def needed(self, targets: Iterable[int], dumped: Collection[int]) -> set[int]:
        """Return some values, and what lies between them and the dumped values before them."""
        waiting = [*targets]
        found = {*waiting}
        while waiting:
            for number in self.sources(waiting.pop()) - found:
                if number not in dumped:
                    found.add(number)
                    waiting.append(number)
        return found

    def pieces(self, dumped: Collection[int]) -> list[Piece]:
        """Return the piece of every dumped value that may be judged, in computation's order."""
        return [self.piece(number, dumped) for number in sorted(dumped) if self.judges(number)]

    def judges(self, number: int) -> bool:
        return self.targets is None or number in self.targets

    def kind(self, piece: Piece) -> tuple[str, ...]:
        """Return what like pieces of different layers share: the modules that they go through."""
        return tuple(self.calls[number].place for number in piece.calls)

    def several(self, piece: Piece) -> bool:
        """Say whether a piece is of several layers. What they share, as their mask, is of none."""
        calls = (self.calls[number] for number in piece.calls if not self.shared(number))
        return len({call.layer for call in calls} - {None}) > 1

    def shared(self, number: int) -> bool:
        """Say whether more than one layer takes what a call gives."""
        takers = {self.calls[taker].layer for taker in self.consumers[number]}
        return len(takers - {None}) > 1

    def along_tokens(self, some: np.ndarray, number: int) -> np.ndarray:
        """Return a mark of tokens (B, T) in a shape that fits a value; one row fits them all."""
        shape = [1] * len(self.shapes[number])
        shape[0], shape[self.token_axes[number][0]] = some.shape
        return some.reshape(shape)

    def input_shape(self, call: Call, index: int) -> Shape:
        """Return the shape of a value that goes into a call, before anything is rewritten.

        Raises: TypeError if that input is no value of the graph.
        """
        ref = self.calls[call.number].inputs[index]
        if not isinstance(ref, Value):
            raise TypeError(f"input {index} of {call.op} is no value")
        return self.shapes[ref.number]

    def source(self, call: Call, index: int) -> Call:
        """Return the call that makes an input of a call, before anything is rewritten."""
        ref = self.calls[call.number].inputs[index]
        if not isinstance(ref, Value):
            raise TypeError(f"input {index} of {call.op} is no value")
        return self.calls[ref.number]

    def at(self, place: str, layer: int | None) -> Iterator[Call]:
        """Yield the calls of one module."""
        return (call for call in self.calls if call.place == place and call.layer == layer)

    def value(self, tap: str) -> Value | None:
        """Return a reference to what a tap reports, None if the model has no such tap."""
        number = self.taps.get(tap)
        return None if number is None else Value(number)


def values_of(call: Call) -> Iterator[int]:
    """Yield the numbers of the values that a call takes, changed on their way in or not."""
    waiting: list[Ref] = [*call.inputs]
    while waiting:
        ref = waiting.pop()
        if isinstance(ref, Value):
            yield ref.number
        elif isinstance(ref, Derived):
            waiting += ref.sources
