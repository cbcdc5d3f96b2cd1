"""Positions that stretch with the length of the text, stretched by another length than its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.found_again import rope_of_keys
from lockstep.parity.faults.passes import fed_with, numbered
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.turns import FREQUENCIES, PLAIN, turns_of
from lockstep.parity.graph import Call, Constant, Derived, Graph
from lockstep.parity.graph.stretched import ByToken, flat, rope

Lengths = np.ndarray  # (B, T): how long its row is when a token is read
Change = Callable[[Lengths, Graph], Lengths]


def lengths_in(call: Call, graph: Graph) -> Lengths:
    """Return the lengths that the frequencies of a rope are made of."""
    ref = graph.source(call, FREQUENCIES).inputs[0]
    ref = ref.sources[0] if isinstance(ref, Derived) else ref
    if not isinstance(ref, Constant):
        raise TypeError("lengths are no constant")
    return ref.value if ref.value.ndim == 2 else ref.value[:, None]


def stretch(kind: str, lengths: Lengths, options: Any) -> np.ndarray:
    """Return what a length counts for: two of the same stretch are as good as one."""
    original = options["original_max_position_embeddings"]
    return np.maximum(lengths, original) if kind == "dynamic" else lengths > original


def by_other_length(kind: str, change: Change) -> Rewrite:
    """Stretch by `change(lengths, graph)`; where that is the same stretch, change nothing."""

    @rewrite("rope")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        turns = turns_of(call, graph)
        if not turns.by(kind) or turns.lengths is not None:
            return None
        right, options = lengths_in(call, graph), turns.options
        wrong = np.broadcast_to(change(right, graph), right.shape)
        if np.array_equal(stretch(kind, right, options), stretch(kind, wrong, options)):
            return None

        def other(lengths: Any) -> Any:
            wide = wrong[:, : lengths.size // len(wrong)]
            return wide.reshape(lengths.shape)

        source, own = graph.source(call, FREQUENCIES), graph.calls[call.number].inputs[FREQUENCIES]
        refs = own, *source.inputs
        return call.with_input(FREQUENCIES, Derived(replace(turns, lengths=other), refs))

    return rewritten


def of_the_prompt(lengths: Lengths, graph: Graph) -> Lengths:
    return lengths[:, :1]


def before_the_step(lengths: Lengths, graph: Graph) -> Lengths:
    """Count what the cache holds, and not what is fed with it."""
    rows = lengths.shape[1]
    first = np.array((0, *graph.steps))[numbered(graph, rows)]
    return np.where(first > 0, lengths[:, np.maximum(first - 1, 0)], lengths)


def of_the_pass(lengths: Lengths, graph: Graph) -> Lengths:
    """Count what is fed alone; of the prompt that is the length."""
    rows = lengths.shape[1]
    fed = fed_with(graph, rows, rows)
    return np.where(numbered(graph, rows) > 0, np.broadcast_to(fed, lengths.shape), lengths)


def of_the_longest_row(lengths: Lengths, graph: Graph) -> Lengths:
    return lengths.max(axis=0, keepdims=True)


def cached_keys_anew(kind: str) -> Rewrite:
    """Turn all keys by the frequencies of the step that reads them."""

    @rewrite("attention_scores")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        turn = rope_of_keys(call, graph) if graph.steps else None
        source = None if turn is None else graph.source(turn, FREQUENCIES)
        if turn is None or source is None or source.op != f"{PLAIN}_{kind}":
            return None
        right, total = lengths_in(turn, graph), graph.shapes[call.number][-1]
        kinds = stretch(kind, right, source.options)
        if np.array_equal(kinds, np.broadcast_to(kinds[:, :1], kinds.shape)):
            return None
        passes, operation, options = numbered(graph, total), source.op, source.options

        def wrong(ops: Any, queries: Any, keys: Any, old: Any, at: Any, *, scale: float) -> Any:
            out = ops.attention_scores(queries, keys, scale=scale)
            rows = out.shape[-1]
            for step in np.unique(passes[:rows])[1:]:
                here = passes[:rows] == step
                length = right[:, [int(here.argmax())]]
                lengths = np.broadcast_to(length, (len(length), rows))
                frequencies = getattr(ops, operation)(flat(ops, lengths), **options)
                anew = ByToken(rope)(ops, old, at, frequencies, **turn.options)
                scores = ops.attention_scores(queries, anew, scale=scale)
                out = np.where(here[:, None], scores, out)
            return out

        new = call.replaced(wrong)
        return replace(new, inputs=(*new.inputs, *turn.inputs[:2]))

    return rewritten


def by_lengths(kind: str) -> dict[str, Rewrite]:
    """Return the ways to stretch by another length than that of the text so far."""
    return {
        "by the prompt's length, in steps too": by_other_length(kind, of_the_prompt),
        "by the length before the step": by_other_length(kind, before_the_step),
        "by what a step is fed alone": by_other_length(kind, of_the_pass),
        "by the longest row of a batch": by_other_length(kind, of_the_longest_row),
        "cached keys are turned anew in every step": cached_keys_anew(kind),
    }
