"""How a port comes by its angles: the shared parts of what goes wrong with rotary positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Derived, Graph
from lockstep.parity.graph.stretched import BY_LENGTH, FREQUENCIES
from lockstep.reference.precision import dtype_named

X, POSITIONS = 0, 1
PLAIN, PROPORTIONAL = "rope_frequencies", "rope_frequencies_proportional"


@dataclass(frozen=True)
class Turns:
    """How a port comes by its frequencies: which operation, with which options, and what then.

    `lengths` makes the lengths of another text, where they depend on it; None for its own. Rewrites
    change one another's `Turns` instead of its result, so that a wrong base and a missing stretch
    compose.
    """

    op: str | Callable[..., Any]
    options: Mapping[str, Any]
    after: tuple[Callable[[Any], Any], ...] = ()
    lengths: Callable[[Any], Any] | None = None

    def __call__(self, ops: Any, right: Any, *lengths: Any) -> Any:
        if self.lengths is not None:
            lengths = (self.lengths(*lengths),)
        by_length = callable(self.op) or self.op in BY_LENGTH
        operation = self.op if callable(self.op) else getattr(ops, self.op)
        frequencies = operation(*(lengths if by_length else ()), **self.options)
        for change in self.after:
            frequencies = change(frequencies)
        return frequencies

    def other(self, **options: Any) -> Turns:
        return replace(self, options={**self.options, **options})

    def then(self, change: Callable[[Any], Any]) -> Turns:
        return replace(self, after=(*self.after, change))

    @property
    def plain(self) -> Turns:
        """The frequencies of a head whose positions are not stretched."""
        kept = {name: self.options[name] for name in ("theta", "dims")}
        return replace(self, op=PLAIN, options=kept)

    def by(self, kind: str) -> bool:
        return self.op == f"{PLAIN}_{kind}"


def turns_of(call: Call, graph: Graph) -> Turns:
    """Return how the frequencies of a call come about, as far as it is rewritten."""
    ref = call.inputs[FREQUENCIES]
    if isinstance(ref, Derived) and isinstance(ref.change, Turns):
        return ref.change
    source = graph.source(call, FREQUENCIES)
    return Turns(source.op, dict(source.options))


def turning(change: Callable[[Turns, Any], Turns | None]) -> Rewrite:
    """Rewrite how frequencies come about: `change(turns, config)`, None to change nothing."""

    @rewrite("rope")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        before = turns_of(call, graph)
        after = change(before, graph.config)
        if after is None or after == before:
            return None
        source = graph.source(call, FREQUENCIES)
        right = graph.calls[call.number].inputs[FREQUENCIES]
        return call.with_input(FREQUENCIES, Derived(after, (right, *source.inputs)))

    return rewritten


def of_kind(kind: str, change: Callable[[Turns, Any], Turns | None]) -> Rewrite:
    """The same, where positions are stretched in one way."""
    return turning(lambda turns, config: change(turns, config) if turns.by(kind) else None)


def has_two_bases(config: Any) -> bool:
    return hasattr(config, "global_rope_theta")


def times(factor: float) -> Callable[[Any], Any]:
    return lambda frequencies: frequencies * factor


def in_half(name: str) -> Callable[[Any], Any]:
    """Round to half precision and back."""
    return lambda values: values.astype(dtype_named(name)).astype(np.float64)


def rearranged(call: Call, order: np.ndarray) -> Call:
    """Reorder a head's numbers for the turn, and put them back behind it."""
    back = np.argsort(order)
    new = call.with_changed(X, lambda ops, x: x[..., order])
    return replace(new, after=(lambda ops, turned: turned[..., back], *new.after))


def shifted(by: int) -> Callable[..., Any]:
    return lambda ops, positions: positions + by
