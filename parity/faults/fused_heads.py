"""Queries, keys and values that a port puts into one matrix, and cuts otherwise than it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.tensors import BIAS, MOVED, dense, named, renamed, turn_of
from lockstep.parity.graph import Call, Conflict, Derived, Graph

PARTS = ("q_proj", "k_proj", "v_proj")
COUNTS = ("num_attention_heads", "num_key_value_heads")
Order = Callable[[np.ndarray, int, int], np.ndarray]  # order(rows, heads, groups)


def by_groups(rows: np.ndarray, heads: int, groups: int) -> np.ndarray:
    """Order all queries, keys, values as they are cut if each group is taken for its own block.

    A block is the queries of a group, its key head, its value head.
    """
    blocks = rows.reshape(groups, heads // groups + 2, -1)
    return np.concatenate([blocks[:, :-2].ravel(), blocks[:, -2].ravel(), blocks[:, -1].ravel()])


def as_blocks(rows: np.ndarray, heads: int, groups: int) -> np.ndarray:
    """Order them as blocks of groups, which are then cut as if all queries came first."""
    queries, keys, values = cut(rows, heads, groups)
    parts = [one.reshape(groups, -1) for one in (queries, keys, values)]
    return np.concatenate(parts, axis=1).ravel()


def values_first(rows: np.ndarray, heads: int, groups: int) -> np.ndarray:
    """Order them with the values where the keys should be."""
    queries, keys, values = cut(rows, heads, groups)
    return np.concatenate([queries, values, keys])


def cut(rows: np.ndarray, heads: int, groups: int) -> list[np.ndarray]:
    """Cut rows of all heads into those of queries, keys and values."""
    width = len(rows) // (heads + 2 * groups)
    return np.split(rows, [heads * width, (heads + groups) * width])


def cut_otherwise(order: Order) -> Rewrite:
    """Let each of the three projections have the rows that it gets by another order.

    Not where one of them is missing, or is not of whole heads. Raises: Conflict if rows or columns
    of the matrix have been moved already.
    """

    @rewrite("linear", r"self_attn\.[qkv]_proj")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        heads, groups = (getattr(graph.config, name) for name in COUNTS)
        mine = next((n for n, one in enumerate(PARTS) if one in (call.tensor(1) or "")), None)
        if mine is None or heads % groups:
            return None
        new = call
        for index in (1, BIAS["linear"]):
            fused = together(call, index, graph)
            if fused is None:
                continue
            if turn_of(call.inputs[index]) == MOVED:
                raise Conflict("one matrix")
            names, rows = fused
            some = cut(order(np.arange(rows), heads, groups), heads, groups)[mine]
            parts = tuple(renamed(call.inputs[index], name) for name in names)
            new = new.with_input(index, Derived(rows_of(some), parts))
        return None if new is call else new

    return rewritten


def together(call: Call, index: int, graph: Graph) -> tuple[list[str], int] | None:
    """Return the names of the three tensors and the rows that they have together."""
    name = named(call.inputs[index]) if index < len(call.inputs) else None
    mine = next((one for one in PARTS if one in (name or "")), None)
    if name is None or mine is None:
        return None
    names = [name.replace(mine, one) for one in PARTS]
    if not all(one in graph.stored for one in names):
        return None
    queries, keys, values = (graph.stored[one].shape[0] for one in names)
    heads, groups = (getattr(graph.config, one) for one in COUNTS)
    fits = keys == values and keys % groups == 0 and queries == heads * (keys // groups)
    return (names, queries + keys + values) if fits else None


def rows_of(some: np.ndarray) -> Callable[..., np.ndarray]:
    def change(ops: Any, *parts: Any) -> np.ndarray:
        return np.concatenate([dense(ops, part) for part in parts])[some]

    return change
