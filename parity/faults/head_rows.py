"""The order of the rows of query and key projections: halves of a head, or pairs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.graph import Call, Graph

# What of a projection has a row an output: its weight and bias; an adapter's B and lengths.
ROWS = {"linear": (1, 2), "add_lora": (3,), "dora_rescale": (1, 2, 4, 5)}


def halves_first(rows: np.ndarray, heads: int) -> np.ndarray:
    """Order rows as GGUF's reader must: (0, 1), (2, 3), ... become the two halves of a head."""
    return rows.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def pairs_first(rows: np.ndarray, heads: int) -> np.ndarray:
    """Order rows as GGUF's writer does: the two halves of a head become neighbours."""
    return rows.reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)


def heads_of(call: Call, graph: Graph) -> tuple[int, int] | None:
    """Return how many heads the rows of a query or key projection are, and how many queries."""
    if call.op not in ROWS or call.layer is None or not call.place.endswith(("q_proj", "k_proj")):
        return None
    config = graph.config
    queries = config.num_attention_heads
    if call.place.endswith("q_proj"):
        return queries, queries
    by_layer = getattr(config, "heads_of", None)
    return (by_layer(call.layer)[0] if by_layer else config.num_key_value_heads), queries


def rows_moved(order: Callable[[np.ndarray, int, int], np.ndarray | None]) -> Rewrite:
    """Reorder the rows of a query or key projection: `order(rows, heads, query heads)`."""

    def rewritten(call: Call, graph: Graph) -> Call | None:
        heads = heads_of(call, graph)
        if heads is None:
            return None
        rows = np.arange(graph.shapes[call.number][-1])
        try:
            moved = order(rows, *heads)
        except ValueError:  # that many heads do not divide the rows
            return None
        if moved is None or (moved == rows).all():
            return None
        new = call
        for index in ROWS[call.op]:
            new = new.with_changed(index, lambda ops, part: None if part is None else part[moved])
        return new

    return rewritten


def keys_by(count: Callable[[int, int], int]) -> Rewrite:
    """Undo the order of the keys' rows with another number of heads than it was made with."""
    return rows_moved(
        lambda rows, heads, queries: None if heads == queries
        else pairs_first(rows, heads)[halves_first(rows, count(heads, queries))]
    )  # fmt: skip
