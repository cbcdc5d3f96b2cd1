"""Matrices of queries by keys, made some queries at a time: a large one never is there as a whole.

Scores, and the probabilities of the same size, are put off until their values are averaged, a block
of queries at a time. Each block is what the operations make of it, so that nothing changes but, in
last bits, the order of sums. That holds of right operations alone: a wrong one may count places in
its matrix, or mix queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

LARGE, BLOCK = 1 << 27, 1 << 25  # bytes of a matrix in float64: put off if above; at a time
MOST = 1 << 30  # bytes of a matrix in float64 that is made as a whole
MASK, AVERAGE = "causal_mask", "attention_context"
MAKE = MASK, "attention_scores", "softmax"  # operations that make such a matrix
QUERIES = {"attention_scores": (0,), "softmax": (0, 1), AVERAGE: (0, 2)}  # inputs that have them
TOO_LARGE = "a wrong {op} needs a whole matrix of {size:.1f} GB in float64"

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Later:
    """What an operation would return of this shape; `rows(start, stop)` makes some of its queries.

    Queries are the last axis but one. `inputs` is what that takes.
    """

    op: str
    shape: Shape
    rows: Callable[[int, int], np.ndarray]
    inputs: tuple[Any, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes the arrays take that it holds, until it is made."""
        return sum(one.nbytes for one in self.held().values())

    def held(self) -> dict[int, np.ndarray]:
        """Return the arrays that it is made of, by what tells them apart."""
        found: dict[int, np.ndarray] = {}
        for one in self.inputs:
            if isinstance(one, Later):
                found |= one.held()
            elif isinstance(one, np.ndarray):
                found[id(one)] = one
        return found


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
    """Compute a right operation from its inputs; a matrix of many queries is put off.

    `count(shape)` says how many queries go at once. An input that was put off is made as a whole
    for an operation that does not go by queries. If queries do not all go at once, those that are
    not `seen` average nothing and get zeros; None sees all.
    Raises: ValueError if what a wrong operation made before has not the queries that it should.
    """
    shape = matrix_of(op, [getattr(one, "shape", ()) for one in inputs])
    if shape is None or count(shape) >= shape[-2]:
        return compute(*map(whole, inputs))

    def rows(start: int, stop: int) -> np.ndarray:
        return compute(
            *(of_queries(op, index, one, start, stop) for index, one in enumerate(inputs))
        )

    value = Later(op, shape, rows, tuple(inputs))
    return joined(value, count(shape), seen) if op == AVERAGE else value


def as_a_whole(op: str, compute: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Compute an operation that may be wrong, or change inputs of one: from whole matrices.

    Raises: ValueError if one that it takes or makes is too large.
    """
    made = matrix_of(op, [getattr(one, "shape", ()) for one in inputs])
    shapes = [one.shape for one in inputs if isinstance(one, Later)] + ([made] if made else [])
    size = 8 * max(map(prod, shapes), default=0)
    if size > MOST:
        raise ValueError(TOO_LARGE.format(op=op, size=size / 1e9))
    return compute(*map(whole, inputs))


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


def cut(value: Any, start: int, stop: int) -> Any:
    """Return some queries of a matrix, made now if it was put off; what is one for all stays."""
    if isinstance(value, Later):
        return value.rows(start, min(stop, value.shape[-2]))
    return value if value.shape[-2] == 1 else value[..., start:stop, :]


def joined(value: Later, count: int, seen: Sequence[int] | None = None) -> np.ndarray:
    """Make a matrix, or what is averaged by it, so many queries at a time, all or those seen.

    Raises: ValueError if a block has not its queries.
    """
    length = value.shape[-2]
    spans = spans_of(length, count, range(length) if seen is None else seen) or [(0, 1)]
    parts = [cut(value, *span) for span in spans]
    if [stop - start for start, stop in spans] != [part.shape[-2] for part in parts]:
        raise ValueError(f"{value.op} of some queries gives others")
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
