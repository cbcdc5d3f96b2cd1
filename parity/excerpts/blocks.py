"""Attention by blocks of queries, where nobody asks for scores: a matrix of all is never made.

The reference makes scores, queries by keys, for each head, and probabilities of the same size. Here
both are put off until their values are averaged, a block of queries at a time. Each block is what
the operations make of it, so that nothing changes but, in last bits, the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lockstep.parity.cli.output import in_units
from lockstep.parity.excerpts.whole_run import SCORES
from lockstep.parity.judging.padding import OVER_KEYS
from lockstep.parity.naming.names import matched
from lockstep.reference.model import Model

SAID = "attention goes by blocks of {count} queries: the scores of a layer would take {size}"


@dataclass(frozen=True, eq=False)
class Later:
    """What an operation would return of this shape; `rows(start, stop)` makes some of its queries.

    Queries are the last axis but one.
    """

    shape: tuple[int, ...]
    rows: Callable[[int, int], np.ndarray]

    @property
    def size(self) -> int:
        return prod(self.shape)


class Blocks:
    """A namespace of operations in which scores are made `count` queries at a time."""

    def __init__(self, ops: Any, count: int):
        self.ops, self.count = ops, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ops, name)

    def causal_mask(self, queries: Any, keys: Any, *, window: int | None) -> Any:
        def rows(start: int, stop: int) -> np.ndarray:
            some = keys if keys.ndim == 2 else keys[:, start:stop]
            return self.ops.causal_mask(queries[:, start:stop], some, window=window)

        return self.later((len(queries), 1, queries.shape[1], keys.shape[-1]), rows)

    def attention_scores(self, queries: Any, keys: Any, *, scale: float) -> Any:
        def rows(start: int, stop: int) -> np.ndarray:
            return self.ops.attention_scores(queries[:, :, start:stop], keys, scale=scale)

        return self.later((*queries.shape[:3], keys.shape[2]), rows)

    def softmax(self, scores: Any, mask: Any, *, masked_row: str) -> Any:
        def rows(start: int, stop: int) -> np.ndarray:
            some = cut(scores, start, stop), cut(mask, start, stop)
            return self.ops.softmax(*some, masked_row=masked_row)

        return self.later(scores.shape, rows)

    def attention_context(self, probs: Any, values: Any, mask: Any) -> Any:
        def rows(start: int, stop: int) -> np.ndarray:
            return self.ops.attention_context(
                cut(probs, start, stop), values, cut(mask, start, stop)
            )

        spans = range(0, max(probs.shape[-2], 1), self.count)
        return np.concatenate([rows(start, start + self.count) for start in spans], axis=2)

    def later(self, shape: Sequence[int], rows: Callable[[int, int], np.ndarray]) -> Any:
        """Put a matrix off, unless it has no more queries than a block."""
        return Later(tuple(shape), rows) if shape[-2] > self.count else rows(0, shape[-2])


def cut(value: Any, start: int, stop: int) -> Any:
    """Return some queries of a matrix, made now if it was put off."""
    if isinstance(value, Later):
        return value.rows(start, min(stop, value.shape[-2]))
    return value[..., start:stop, :]


def block_of(model: Any, rows: int, length: int) -> int | None:
    """Return how many queries of a prompt go at once; None if all can, or it is not known how."""
    if not isinstance(model, Model) or model.runs_on != "reference":
        return None
    each = 4 * model.config.num_attention_heads * rows * length
    return max(SCORES // each, 1) if each * length > SCORES else None


def asks_for_scores(names: Sequence[str], globs: Sequence[str] | None) -> bool:
    """Say whether a tap over all keys is among those that are chosen."""
    over = [name for name in names if name.endswith(OVER_KEYS)]
    return globs is None or any(matched(name, globs) for name in over)


def by_blocks(model: Model, count: int) -> Model:
    """Return a model that makes its scores a block of queries at a time."""
    ops = Blocks(model.ops, count)
    return Model(model.checkpoint, dtype=model.dtype, ops=ops, adapters=model.adapters)


def said_of_blocks(model: Model, count: int, rows: int, length: int) -> str:
    size = 4 * model.config.num_attention_heads * rows * length * length
    return SAID.format(count=count, size=in_units(size))
