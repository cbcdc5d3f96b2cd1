"""Attention by blocks of queries, where nobody asks for scores: a matrix of all is never made."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from lockstep.parity.cli.output import in_units
from lockstep.parity.excerpts.whole_run import SCORES
from lockstep.parity.graph.by_queries import AVERAGE, MAKE, by_queries
from lockstep.parity.judging.padding import OVER_KEYS
from lockstep.parity.naming.names import matched
from lockstep.reference.model import Model

SAID = "attention goes by blocks of {count} queries: the scores of a layer would take {size}"


class Blocks:
    """A namespace of operations in which scores are made `count` queries at a time."""

    def __init__(self, ops: Any, count: int):
        self.ops, self.count = ops, count

    def __getattr__(self, name: str) -> Any:
        own = getattr(self.ops, name)
        if name not in (*MAKE, AVERAGE):
            return own

        def some(*inputs: Any, **options: Any) -> Any:
            return by_queries(name, partial(own, **options), inputs, lambda shape: self.count)

        return some


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
