"""Queries, keys and values that a port puts into one matrix, and cuts otherwise than it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import either, rewrite
from lockstep.parity.faults.tensors import BIAS, MOVED, dense, named, renamed, turn_of
from lockstep.parity.graph import Call, Conflict, Derived, Graph, Value

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


def put_together(*parts: int) -> Order:
    """Put the parts together in another order than that in which they are cut."""
    return lambda rows, heads, groups: np.concatenate(
        [cut(rows, heads, groups)[part] for part in parts]
    )


def cut_in_order(*parts: int) -> Order:
    """Cut what is put together rightly as if it lay in another order, each part by its width."""

    def order(rows: np.ndarray, heads: int, groups: int) -> np.ndarray:
        widths = [len(one) for one in cut(rows, heads, groups)]
        pieces = np.split(rows, np.cumsum([widths[part] for part in parts])[:-1])
        return np.concatenate([pieces[parts.index(part)] for part in range(len(parts))])

    return order


def cut(rows: np.ndarray, heads: int, groups: int) -> list[np.ndarray]:
    """Cut rows of all heads into those of queries, keys and values."""
    width = len(rows) // (heads + 2 * groups)
    return np.split(rows, [heads * width, (heads + groups) * width])


def cut_otherwise(order: Order) -> Rewrite:
    """Let each of the three projections have what it gets by another order.

    These are rows of a matrix; where a port is known to make all three at once, columns of what it
    made. Not where one of them is missing, or is not of whole heads. Raises: Conflict if rows or
    columns of the matrix have been moved already.
    """
    return either(rows_cut_otherwise(order), columns_cut_otherwise(order))


def columns_cut_otherwise(order: Order) -> Rewrite:
    """Take what goes into the heads of each from another place of the fused product."""

    @rewrite("split_heads")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        if not graph.fused:
            return None
        module, _, part = (graph.source(call, 0).taps or ("",))[0].rpartition(".")
        parts = [graph.value(f"{module}.{one}") for one in PARTS]
        values = [one for one in parts if one is not None]
        if module not in graph.fused or part not in PARTS or len(values) < len(PARTS):
            return None
        heads, groups = (getattr(graph.config, name) for name in COUNTS)
        widths = [graph.shapes[one.number][-1] for one in values]
        if heads % groups or not of_heads(widths, heads, groups):
            return None
        places, mine = np.arange(sum(widths)), PARTS.index(part)
        some = cut(order(places, heads, groups), heads, groups)[mine]
        if np.array_equal(some, cut(places, heads, groups)[mine]):
            return None
        return columns_taken(call, values, mine, some)

    return rewritten


def columns_taken(call: Call, parts: Sequence[Value], mine: int, some: Any) -> Call:
    """Let a call take some columns of a fused product in the place of its part, number `mine`."""

    def change(ops: Any, own: Any, *others: Any) -> np.ndarray:
        every = [*others[:mine], own, *others[mine:]]
        return np.concatenate(every, axis=-1)[..., some]

    return call.with_changed(0, change, *parts[:mine], *parts[mine + 1 :])


def rows_cut_otherwise(order: Order) -> Rewrite:
    """Let each of the three matrices have other rows of all."""

    @rewrite("linear", r"self_attn\.[qkv]_proj")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        if (call.taps or ("",))[0].rpartition(".")[0] in graph.fused:
            return None
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
    rows = [graph.stored[one].shape[0] for one in names]
    heads, groups = (getattr(graph.config, one) for one in COUNTS)
    return (names, sum(rows)) if of_heads(rows, heads, groups) else None


def of_heads(rows: Sequence[int], heads: int, groups: int) -> bool:
    """Say whether queries, keys and values are of whole heads, all of one width."""
    queries, keys, values = rows
    return keys == values and keys % groups == 0 and queries == heads * (keys // groups)


def rows_of(some: np.ndarray) -> Callable[..., np.ndarray]:
    def change(ops: Any, *parts: Any) -> np.ndarray:
        return np.concatenate([dense(ops, part) for part in parts])[some]

    return change
