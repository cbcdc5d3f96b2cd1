"""One cache for all layers: each finds what those before it put there, and its own behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.found_again import read_by_layer, rope_of_keys
from lockstep.parity.faults.passes import KEYS
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.values import scores_of
from lockstep.parity.graph import Call, Graph
from lockstep.parity.graph.stretched import turn_of

Change = Callable[..., Any]
SCORES, AVERAGE = "attention_scores", "attention_context"


def of_all_layers(*, counted_on: bool = False, by_position: bool = False) -> Rewrite:
    """See all tokens of earlier layers too, or those `by_position` that are at or before one's own.
    Positions are `counted_on` from layer to layer, where they are counted by what is in the cache:
    then keys of layers before are so far behind.
    """

    @rewrite(AVERAGE)
    def rewritten(call: Call, graph: Graph) -> Call | None:
        values = [*before(call, graph)]
        if not values:
            return None
        scores, turn = scores_of(call, graph), rope_of_keys(scores_of(call, graph), graph)
        if counted_on and turn is None:
            return None
        held = [scores_of(one, graph).inputs[KEYS] for one in values]
        new = call.replaced(attended(call, graph, turn if counted_on else None, by_position))
        table = turn.inputs[1:3] if turn is not None and counted_on else ()
        more = (*scores.inputs, *table, *held, *(one.inputs[KEYS] for one in values))
        return replace(new, inputs=(*new.inputs, *more))

    return rewritten


def before(call: Call, graph: Graph) -> list[Call]:
    """Return the averages of the layers before, if these hold as much and all see all."""
    windows = [one.options["window"] for one in graph.calls if one.op == "causal_mask"]
    if graph.steps or call.layer is None or any(one is not None for one in windows):
        return []
    same = [one for one in graph.calls if one.op == call.op]
    shapes = {graph.input_shape(one, KEYS) for one in same}
    return [one for one in same if (one.layer or 0) < call.layer] if len(shapes) == 1 else []


def attended(call: Call, graph: Graph, turn: Call | None, by_position: bool) -> Change:
    """Return the attention over what all layers so far hold; of a `turn` of keys as it goes on."""
    scale = scores_of(call, graph).options["scale"]
    row = graph.source(call, 0).options["masked_row"]

    def wrong(
        ops: Any, probs: Any, own: Any, mask: Any, queries: Any, keys: Any, *more: Any
    ) -> np.ndarray:
        table, earlier = (more[:2], more[2:]) if turn is not None else ((), more)
        layers = len(earlier) // 2
        held, values = earlier[:layers], earlier[layers:]
        if turn is not None:
            held = [farther(ops, one, turn, layers - at, table) for at, one in enumerate(held)]
        every = np.concatenate([*held, keys], axis=2)
        before = [mask if by_position else np.ones_like(mask)] * layers
        seen = np.concatenate([*before, mask], axis=-1)
        shares = ops.softmax(
            ops.attention_scores(queries, every, scale=scale), seen, masked_row=row
        )
        return ops.attention_context(
            shares, np.concatenate([*copied(values, own), own], axis=2), seen
        )

    return wrong


def copied(values: Sequence[Any], own: Any) -> list[np.ndarray]:
    """Give others' values as many heads as a layer's own have become."""
    return [np.repeat(one, own.shape[1] // one.shape[1], axis=1) for one in values]


def farther(ops: Any, keys: Any, turn: Call, layers: int, table: Sequence[Any]) -> np.ndarray:
    """Turn keys back by as many prompts as they are layers before."""
    at, by = table
    return turn_of(turn)(ops, keys, np.full_like(at, -layers * keys.shape[2]), by)


def of_other_layer_always(which: Callable[[int], int]) -> Rewrite:
    """Read the keys and values of another layer, one before, in the prompt as in steps."""

    @rewrite((SCORES, AVERAGE))
    def rewritten(call: Call, graph: Graph) -> Call | None:
        other = read_by_layer(which, call, graph)
        if other is None:
            return None
        return call.with_changed(KEYS, lambda ops, own, other: other, other)

    return rewritten


@rewrite((SCORES, AVERAGE))
def of_first_of_its_kind(call: Call, graph: Graph) -> Call | None:
    """Read what the first layer of the kind holds, in a layer that shares another one's."""
    kinds, own = getattr(graph.config, "layer_types", ()), graph.calls[call.number].inputs[KEYS]
    same = (one for one in graph.calls if one.op == call.op and one.inputs[KEYS] == own)
    if call.layer is None or next(same).layer == call.layer:
        return None
    first = kinds.index(kinds[call.layer])
    return of_other_layer_always(lambda layer: first)(call, graph)
