"""A checkpoint as one of several ranks sees it: its own part of each weight, its own heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.parallel.rules import rule_of
from lockstep.reference.checkpoint.parallel.shares import key_heads, share, spans_of
from lockstep.reference.checkpoint.spans import Spans
from lockstep.reference.checkpoint.stack import Stack


class RankConfig:
    """A model's config with a rank's share of the heads; all else is that of the model."""

    def __init__(self, whole: Any, ranks: int) -> None:
        self._whole, self._ranks = whole, ranks
        self.num_attention_heads = whole.num_attention_heads // ranks
        self.num_key_value_heads = self._held(whole.num_key_value_heads)

    def heads_of(self, layer: int) -> tuple[int, int]:
        """Return how many key/value heads a layer has here, and how wide they are."""
        whole = self._whole
        wide = whole.heads_of(layer)[1] if hasattr(whole, "heads_of") else whole.head_dim
        return self._held(key_heads(whole, layer)), wide

    def _held(self, groups: int) -> int:
        first, stop = share(groups, 0, self._ranks)
        return stop - first

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not yet made, as while it is copied
            raise AttributeError(name)
        return getattr(self._whole, name)


class RankCheckpoint:
    """What rank `rank` of `ranks` has of a checkpoint that `check_ranks` has passed.

    `tensor` reads the bytes of the rank's part and no others. `names` and `stored`, like all else,
    are those of the whole checkpoint.
    """

    def __init__(self, whole: Checkpoint, rank: int, ranks: int) -> None:
        self.whole, self.rank, self.ranks = whole, rank, ranks
        self.config = RankConfig(whole.config, ranks)

    def __getattr__(self, name: str) -> Any:
        if name == "whole":  # not yet made, as while it is copied
            raise AttributeError(name)
        return getattr(self.whole, name)

    def spans(self, module: str) -> Spans:
        """Return the rows or columns of a module's weight that are here, as its rule says."""
        return spans_of(self.whole, module, self.rank, self.ranks)

    def widths(self, module: str) -> list[int]:
        """Return how many rows, or columns, each rank has of a module's weight."""
        every = (spans_of(self.whole, module, rank, self.ranks) for rank in range(self.ranks))
        return [sum(stop - first for first, stop in spans) for spans in every]

    def tensor(self, name: str) -> np.ndarray | Packed:
        """Read this rank's part of one tensor; a bias that is added to a sum is whole."""
        module, _, kind = name.rpartition(".")
        rule = rule_of(module) if kind in ("weight", "bias") else None
        if rule is None or (kind == "bias" and rule.axis == "columns"):
            return self.whole.tensor(name)
        shape = self.whole.stored(name).shape
        if len(shape) < 3:
            return self._matrix(name, 0)
        return stacked([self._matrix(name, index) for index in range(shape[0])])

    def matrix(self, name: str) -> np.ndarray | Packed:
        """Read this rank's part of a matrix, all of it at once."""
        return self.tensor(name)

    def stack(self, name: str) -> Stack:
        """Return a stack of matrices; this rank's part of each is read when it is asked for."""
        count, *shape = self.whole.stored(name).shape
        rule, part = rule_of(name.removesuffix(".weight")), list(shape)
        if rule is not None:
            part[rule.axis == "columns"] = self.widths(name.removesuffix(".weight"))[self.rank]
        return Stack((count, *part), lambda index: self._matrix(name, index))

    def tensor_at(self, name: str, rows: Sequence[int]) -> np.ndarray | Packed:
        """Read some rows of a table, counted from the first that is here."""
        if rule_of(name.removesuffix(".weight")) is None:
            return self.whole.tensor_at(name, rows)
        first = self.spans(name.removesuffix(".weight"))[0][0]
        return self.whole.tensor_at(name, [first + row for row in rows])

    def _matrix(self, name: str, index: int) -> np.ndarray | Packed:
        """Read this rank's part of a matrix or a vector, or of one matrix of a stack."""
        module = name.rpartition(".")[0]
        rule = rule_of(module)
        if rule is None:
            return self.whole.tensor_part(name, None, None, matrix=index)
        spans = self.spans(module)
        rows, columns = (spans, None) if rule.axis == "rows" else (None, spans)
        return self.whole.tensor_part(name, rows, columns, matrix=index)


def stacked(matrices: Sequence[Any], by: Callable[[Any], np.ndarray] = np.stack) -> Any:
    """Put matrices behind each other on a new first axis; packed ones stay packed.

    With `by=np.concatenate` on the first that they have, which makes one matrix of more rows.
    """
    first = matrices[0]
    if not isinstance(first, Packed):
        return by(matrices)
    each = {one.name: [getattr(matrix, one.name) for matrix in matrices] for one in fields(first)}
    arrays = {name: by(some) for name, some in each.items() if hasattr(some[0], "shape")}
    return replace(first, **arrays)
