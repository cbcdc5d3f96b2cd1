"""Matrices of queries by keys, made some queries at a time: a large one never is there as a whole.

Scores, and the probabilities of the same size, are put off until their values are averaged, a block
of queries at a time. Each block is what the operations make of it, so that nothing changes but, in
last bits, the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

LARGE, BLOCK = 1 << 27, 1 << 25  # bytes of a matrix in float64: put off if above; at a time
MASK, AVERAGE = "causal_mask", "attention_context"
MAKE = MASK, "attention_scores", "softmax"  # operations that make such a matrix
QUERIES = {"attention_scores": (0,), "softmax": (0, 1), AVERAGE: (0, 2)}  # inputs that have them

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Later:
    """What an operation would return of this shape; `rows(start, stop)` makes some of its queries.

    Queries are the last axis but one.
    """

    op: str
    shape: Shape
    rows: Callable[[int, int], np.ndarray]

    nbytes = 0  # until it is made

    @property
    def size(self) -> int:
        return prod(self.shape)


def at_once(shape: Shape) -> int:
    """Return how many queries of a matrix are made at a time: all if it is not large."""
    size = 8 * prod(shape)
    return shape[-2] if size <= LARGE else max(BLOCK * shape[-2] // size, 1)


def by_queries(
    op: str,
    compute: Callable[..., Any],
    inputs: Sequence[Any],
    count: Callable[[Shape], int] = at_once,
    seen: Sequence[int] | None = None,
) -> Any:
    """Compute an operation, right or wrong, from its inputs; a matrix of many queries is put off.

    `count(shape)` says how many queries go at once. An input that was put off is made as a whole
    for an operation that does not go by queries. If queries do not all go at once, those that are
    not `seen` average nothing and get zeros; None sees all.
    Raises: ValueError if a wrong operation cannot be computed of some queries.
    """
    shape = matrix_of(op, [getattr(one, "shape", ()) for one in inputs])
    if shape is None or count(shape) >= shape[-2]:
        return compute(*map(whole, inputs))

    def rows(start: int, stop: int) -> np.ndarray:
        some = [of_queries(op, index, one, start, stop) for index, one in enumerate(inputs)]
        try:
            return compute(*some)
        except IndexError as error:
            raise ValueError(f"{op} of some queries: {error}") from None

    value = Later(op, shape, rows)
    return joined(value, count(shape), seen) if op == AVERAGE else value


def matrix_of(op: str, shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape of the matrix that an operation makes, or averages by; None if of none."""
    ranks = {MASK: 2, **dict.fromkeys(QUERIES, 4)}
    if op not in ranks or len(shapes[0]) != ranks[op]:
        return None
    first, second = shapes[:2]
    if op == MASK:
        return first[0], 1, first[1], second[-1]
    return (*first[:3], second[2]) if op == "attention_scores" else first


def of_queries(op: str, index: int, value: Any, start: int, stop: int) -> Any:
    """Return of one input what some queries take."""
    if op == MASK:
        return value[:, start:stop] if index == 0 or value.ndim == 3 else value
    return cut(value, start, stop) if index in QUERIES[op] else whole(value)


def changed(change: Callable[..., Any], sources: Sequence[Any]) -> Any:
    """Change values on their way into an operation; of matrices that were put off, some queries.

    A mask is changed as a whole: what is wrong with it may count places.
    """
    later = next((one for one in sources if isinstance(one, Later)), None)
    if later is None or later.op == MASK:
        return change(*map(whole, sources))

    def rows(start: int, stop: int) -> np.ndarray:
        return change(
            *(cut(one, start, stop) if isinstance(one, Later) else one for one in sources)
        )

    return Later(later.op, later.shape, rows)


def cut(value: Any, start: int, stop: int) -> Any:
    """Return some queries of a matrix, made now if it was put off."""
    if isinstance(value, Later):
        return value.rows(start, min(stop, value.shape[-2]))
    return value[..., start:stop, :]


def joined(value: Later, count: int, seen: Sequence[int] | None = None) -> np.ndarray:
    """Make a matrix, or what is averaged by it, so many queries at a time, all or those seen."""
    length = value.shape[-2]
    spans = spans_of(length, count, range(length) if seen is None else seen) or [(0, 1)]
    parts = [cut(value, *span) for span in spans]
    if seen is None:
        return np.concatenate(parts, axis=-2)
    made = np.zeros((*parts[0].shape[:-2], length, parts[0].shape[-1]), parts[0].dtype)
    for (start, stop), part in zip(spans, parts, strict=True):
        made[..., start:stop, :] = part
    return made


def spans_of(length: int, count: int, seen: Iterable[int]) -> list[tuple[int, int]]:
    """Return from where to where queries go at once, `count` at most, so that all seen are made."""
    blocks = groupby(sorted(one for one in seen if one < length), lambda one: one // count)
    groups = [list(block) for _, block in blocks]
    return [(group[0], group[-1] + 1) for group in groups]


def whole(value: Any) -> Any:
    """Return a value, made now if it was put off."""
    return joined(value, at_once(value.shape)) if isinstance(value, Later) else value
