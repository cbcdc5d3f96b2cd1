"""The passes of a port over a text: the prompt, then what it fed step by step, from its cache.

A step computes what the same rows of one long prefill are. So what goes wrong with a cache is a
rewrite of these rows: of what they see, of what they find there, of where they think they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.turns import POSITIONS
from lockstep.parity.graph import Call, Graph, Ref

KEYS = 1  # where keys stand in the inputs of scores, and values in those of the average
Position = Callable[[Any, Any, Any], Any]  # of positions, where their pass begins, how many it has
Change = Callable[..., Any]


def numbered(graph: Graph, rows: int) -> np.ndarray:
    """Return the pass of each of the first rows, 0 for those of the prompt."""
    return np.searchsorted(graph.steps, np.arange(rows), side="right")


def begins(graph: Graph, rows: int) -> np.ndarray:
    """Return the row that the pass of each row begins with."""
    return np.array((0, *graph.steps))[numbered(graph, rows)]


def fed_with(graph: Graph, rows: int, total: int) -> np.ndarray:
    """Return how many tokens, of `total` in all, were fed in the pass of each row."""
    edges = np.array((0, *graph.steps, total))
    return np.diff(edges)[numbered(graph, rows)]


def repositioned(
    where: Position, *places: str, op: str = "rope", everywhere: bool = False
) -> Rewrite:
    """Give the tokens of steps, or of all passes, other positions: `where(at, begins, length)`."""
    index = POSITIONS if op == "rope" else 0

    @rewrite(op, *places)
    def rewritten(call: Call, graph: Graph) -> Call | None:
        if not graph.steps and not everywhere:
            return None

        total = graph.shapes[call.number][2 if op == "rope" else 1]

        def moved(ops: Any, at: Any, *table: Any) -> Any:
            rows = at.shape[-1]
            new = where(at, begins(graph, rows), fed_with(graph, rows, total))
            for one in table:
                new = np.clip(new, 0, one.shape[0] - 1)
            return new if everywhere else np.where(numbered(graph, rows) > 0, new, at)

        return call.with_changed(index, moved, *call.inputs[1:2] if op == "embedding" else ())

    return rewritten


def is_cached(graph: Graph, rows: int) -> np.ndarray:
    """Say of each query and key (rows, rows) whether the key comes out of the cache."""
    passes = numbered(graph, rows)
    return passes[:, None] > passes[None, :]


def found_again(
    keys: Change | None, values: Change | None, more: Callable[..., tuple[Ref, ...] | None]
) -> Rewrite:
    """Let steps find other keys, or other values, in the cache than those that were put there.

    Each is `change(ops, x, *more)`, of what `more(call, graph, which)` refers to; that is None
    where there is nothing of the kind.
    """

    @rewrite(("attention_scores", "attention_context"))
    def rewritten(call: Call, graph: Graph) -> Call | None:
        which = "keys" if call.op == "attention_scores" else "values"
        change = keys if which == "keys" else values
        refs = more(call, graph, which) if graph.steps and change else None
        if change is None or refs is None:
            return None
        compute = scores_from if which == "keys" else context_from
        new = call.replaced(compute(change, graph))
        return replace(new, inputs=(*new.inputs, *refs))

    return rewritten


def scores_from(change: Change, graph: Graph) -> Change:
    def wrong(ops: Any, queries: Any, keys: Any, *more: Any, scale: float) -> Any:
        right = ops.attention_scores(queries, keys, scale=scale)
        found = ops.attention_scores(queries, change(ops, keys, *more), scale=scale)
        return np.where(is_cached(graph, right.shape[-1]), found, right)

    return wrong


def context_from(change: Change, graph: Graph) -> Change:
    """Average own and found values in one sum, so that it is rounded once."""

    def wrong(ops: Any, probs: Any, values: Any, mask: Any, *more: Any) -> Any:
        cached = is_cached(graph, probs.shape[-1])
        weights = np.concatenate([np.where(cached, 0, probs), np.where(cached, probs, 0)], axis=-1)
        every = np.concatenate([values, change(ops, values, *more)], axis=2)
        seen = np.concatenate([mask & ~cached, mask & cached], axis=-1)
        return ops.attention_context(weights.astype(probs.dtype), every, seen)

    return wrong
