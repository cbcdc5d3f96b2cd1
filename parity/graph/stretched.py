"""Positions that stretch with the length of the text, where it was read in several passes.

Dynamic NTK and LongRoPE take their frequencies from the length so far. A key in a cache keeps those
of the pass that made it, so in one graph of the whole text every token has frequencies of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lockstep.parity.graph.call import Call, Constant, Derived, Value, nested
from lockstep.parity.graph.graph import Graph

BY_LENGTH = ("rope_frequencies_dynamic", "rope_frequencies_longrope")
FREQUENCIES = 2  # where they stand in the inputs of a rope


@dataclass(frozen=True)
class ByToken:
    """A rope of which each token has frequencies of its own, (B L, D/2), or all have the same.

    Tokens become rows of a batch, which may differ, so `operation` is any rope of the catalogue.
    """

    operation: Callable[..., Any]

    def __call__(
        self, ops: Any, x: Any, positions: Any, frequencies: Any, *more: Any, **options: Any
    ) -> Any:
        if frequencies.ndim == 1:
            return self.operation(ops, x, positions, frequencies, *more, **options)
        batch, heads, length, width = x.shape
        if len(frequencies) != batch * length:  # a bug exchanged the axes of heads and tokens
            rows = x.reshape(batch * heads, 1, length, width)
            at = np.repeat(positions, heads, axis=0)
            return self.operation(ops, rows, at, frequencies, *more, **options).reshape(x.shape)
        rows = x.swapaxes(1, 2).reshape(batch * length, heads, 1, width)
        at = np.broadcast_to(positions, (batch, length)).reshape(-1, 1)
        turned = self.operation(ops, rows, at, frequencies, *more, **options)
        return turned.reshape(batch, length, heads, width).swapaxes(1, 2)

    def around(self, instead: Callable[..., Any]) -> ByToken:
        """Return this with another rope, which finds this one in the place of the right one."""
        return ByToken(nested("rope", self.operation, instead))


def rope(ops: Any, *inputs: Any, **options: Any) -> Any:
    return ops.rope(*inputs, **options)


def turn_of(call: Call) -> Callable[..., Any]:
    """Return what a rope of a right graph computes: `turn(ops, x, positions, frequencies)`."""
    return partial(call.instead or rope, **call.options)


def stretched(graph: Graph, positions: np.ndarray) -> Graph:
    """Let each token turn by the frequencies of its own pass; `positions` (B, T) are theirs.

    A graph of one pass, and one whose frequencies do not depend on the length, is left alone.
    """
    numbers = {call.number for call in graph.calls if call.op in BY_LENGTH}
    if not graph.steps or not numbers:
        return graph
    lengths = Derived(flat, (Constant(lengths_of(graph.steps, positions), 1),))

    def by_token(call: Call) -> Call:
        if call.number in numbers:
            return call.with_input(0, lengths)
        ref = call.inputs[FREQUENCIES] if call.op == "rope" else None
        turned = isinstance(ref, Value) and ref.number in numbers
        return replace(call, instead=ByToken(rope)) if turned else call

    shapes = tuple(
        (positions.size, shape[-1]) if number in numbers else shape
        for number, shape in enumerate(graph.shapes)
    )
    return replace(graph, calls=tuple(map(by_token, graph.calls)), shapes=shapes)


def lengths_of(steps: tuple[int, ...], positions: np.ndarray) -> np.ndarray:
    """Return for each token how far its row reaches at the end of its pass, (B, T)."""
    total = positions.shape[1]
    ends = np.array((*steps, total))[np.searchsorted(steps, np.arange(total), side="right")]
    return np.maximum.accumulate(positions, axis=1)[:, ends - 1] + 1


def flat(ops: Any, lengths: Any) -> Any:
    return lengths.reshape(-1)
