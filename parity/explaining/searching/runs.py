"""The port's values, and what the graph makes of them: as it should be, and rounded legally."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Self

import numpy as np

from lockstep.parity.explaining.routing.flips import routers_between
from lockstep.parity.graph import Call, Evaluator, Graph
from lockstep.parity.graph.evaluator import Read
from lockstep.parity.graph.graph import Piece
from lockstep.parity.noise import of_port, ways
from lockstep.parity.noise.exact import FLOAT64, exact


@dataclass
class Kept:
    """What was computed from a dump's values, for as long as they stay as they are.

    What is kept of calls is kept with them, so that no others get their identities.
    """

    centres: dict[int | None, Evaluator] = field(default_factory=dict)
    rounding: dict[int | None, list[Evaluator]] = field(default_factory=dict)
    noise: dict[tuple[int, int | None], float] = field(default_factory=dict)
    faint: dict[int, float] = field(default_factory=dict)
    conventions: OrderedDict[tuple[int, ...], Evaluator] = field(default_factory=OrderedDict)
    followed: dict[Any, tuple[tuple[int, ...], float, Any]] = field(default_factory=dict)
    telling: dict[Any, tuple[np.ndarray, Any]] = field(default_factory=dict)  # tokens: their bits


@dataclass
class Runs:
    """One dump against one graph.

    `dumped` holds the port's values by number. A float64 replay is the centre, and legal ways to
    round at the port's dtype are the noise. `count` says how many values were computed so far.
    """

    graph: Graph
    ops: Any
    dtype: np.dtype
    dumped: Any  # a mapping of arrays by number, to which others can be joined by `|`
    read: Read
    kept: Kept = field(default_factory=Kept)
    routers: dict[int, list[Call]] = field(default_factory=dict)
    count: int = 0
    unseen: dict[int, np.ndarray] = field(default_factory=dict)  # tokens (B, T) that prove nothing
    own: Sequence[Any] = ()  # `dumped`, as each way makes what a port lacks
    seen: Sequence[int] | None = None  # the tokens that are judged, None all
    also: Sequence[Callable[[Any, int | None], Evaluator]] = ()  # legal ways of this dump alone
    remade: set[int] = field(default_factory=set)  # values that are not the port's own bits
    held: np.dtype | None = None  # what the port keeps its weights in, None as it computes

    def centre(self, rows: int | None) -> Evaluator:
        if rows not in self.kept.centres:
            held = self.dtype if self.held is None else self.held
            ops = exact(of_port(self.ops, self.dtype), held)
            self.kept.centres[rows] = self.evaluator(ops, FLOAT64, rows)
        return self.kept.centres[rows]

    def ways(self, rows: int | None) -> list[Evaluator]:
        if rows not in self.kept.rounding:
            every = ways(self.dtype)
            self.kept.rounding[rows] = [
                Evaluator(self.graph, namespace, dtype, dumped, self.read, rows, self.seen)
                for (namespace, dtype), dumped in zip(
                    every, self.own or [self.dumped] * len(every), strict=True
                )
            ] + [make(self, rows) for make in self.also]
        return self.kept.rounding[rows]

    def evaluator(self, ops: Any, dtype: np.dtype, rows: int | None) -> Evaluator:
        return Evaluator(self.graph, ops, dtype, self.dumped, self.read, rows, self.seen)

    def over(self, changed: Mapping[int, np.ndarray]) -> Self:
        """Return the same trial of a dump with some other values."""
        own = [one | changed for one in self.own]
        return replace(
            self, dumped=self.dumped | changed, own=own, kept=Kept(), routers={}, count=0
        )

    def put(self, values: Mapping[int, np.ndarray]) -> None:
        """Take other values for what the port has, in every way to round; then `forget`."""
        for dumped in (self.dumped, *self.own):
            dumped.update(values)

    def forget(self) -> None:
        """Drop what was computed from the dump, since it was changed."""
        self.kept = Kept()

    def port(self, target: int, rows: int | None = None) -> np.ndarray:
        return self.centre(rows).cut(self.dumped[target], self.graph.token_axes[target])

    def finite(self, target: int) -> bool:
        """Say whether the port has a number everywhere."""
        return bool(np.isfinite(self.dumped[target]).all())

    def blind(self, target: int) -> bool:
        """Say whether the port has the same for every token: many sets of bugs would leave that."""
        port = self.tokens(self.port(target), target)
        return len(port) > 1 and bool((port == port[0]).all())

    def routers_of(self, piece: Piece) -> list[Call]:
        """Return the routers of a piece whose choice the port did not dump."""
        target = piece.target
        if target not in self.routers:
            self.routers[target] = routers_between(target, self.graph, self.dumped, piece.calls)
        return self.routers[target]

    def tokens(self, value: np.ndarray, target: int) -> np.ndarray:
        """Return the values of each token in a row, in float64."""
        value = np.moveaxis(value, self.graph.token_axes[target][0], 0)
        return value.reshape(len(value), -1).astype(np.float64)

    def proving(self, value: np.ndarray, target: int) -> np.ndarray:
        """Return the values of the tokens that prove something, each in a row, in float64."""
        tokens = np.moveaxis(value, self.graph.token_axes[target][0], 1)
        unseen = np.broadcast_to(self.unseen.get(target, np.False_), tokens.shape[:2])
        return tokens[~unseen].reshape(-1, prod(tokens.shape[2:])).astype(np.float64)

    def sure(self, value: np.ndarray, piece: Piece, unsure: np.ndarray) -> np.ndarray:
        """Return the values of the other tokens alone, (N, ...)."""
        axis = self.graph.token_axes[piece.target][0]
        return np.moveaxis(value, axis, 1)[~unsure]

    def marked(self, target: int, value: np.ndarray) -> np.ndarray:
        """Return the tokens that prove nothing, in a shape that fits a value, or its first rows."""
        count = value.shape[self.graph.token_axes[target][0]]
        return self.graph.along_tokens(self.unseen[target][:, :count], target)
