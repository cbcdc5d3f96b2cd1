"""One forward pass of several ranks: where each works alone, and where all are added.

The model's file is the same as ever. Between two projections of a pair, the first cut by rows and
the second by columns, every rank has its own heads or its own inner numbers; behind the second
their parts are summed, and all ranks have the same again. That is twice in a layer, and three times
in one that has experts beside its MLP.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.parallel.adapting import bare
from lockstep.reference.checkpoint.parallel.rules import rule_of
from lockstep.reference.ops.dora_rescale import row_lengths
from lockstep.reference.parallel.each import Each, all_sum, for_each
from lockstep.reference.precision import rounded
from lockstep.reference.run import Run
from lockstep.reference.shapes import Array, Tokens


@dataclass(frozen=True)
class ParallelRun(Run):
    """A run whose weights are dealt out: `ranks` has for each rank a run on its own checkpoint.

    What every rank has whole is taken from the first one.
    """

    ranks: tuple[Run, ...]

    def linear(self, x: Any, path: str) -> Any:
        """Apply a projection: of one that is cut by columns the parts are summed.

        To the sum, and once, rows are given their length where DoRA says one; then comes the bias.
        """
        rule = rule_of(path)
        if rule is None:
            return super().linear(x, path)
        if rule.axis == "rows":
            own = for_each(lambda run, x: run.linear(x, path), Each(self.ranks), x)
            return self.tap(path, own)
        parts = for_each(lambda run, x: product(run, x, path), Each(self.ranks), x)
        y, bias = self.rescaled(all_sum(self.ranks[0].ops, parts), path), f"{path}.bias"
        if self.checkpoint.has(bias):
            y = y + rounded(self.weight(bias), y.dtype)
        return self.tap(path, y)

    def rescaled(self, y: Array, path: str) -> Array:
        """Give the rows of an adapted matrix their learned length, where it has one.

        What a row has now is known by its squares, of which each rank has some.
        """
        adapter = self.adapters.get(path)
        if adapter is None or adapter.magnitude is None:
            return y
        squares = all_sum(self.ranks[0].ops, for_each(own_squares, Each(self.ranks), path))
        with np.errstate(invalid="ignore", divide="ignore"):
            gain = adapter.magnitude.astype(squares.dtype) / np.sqrt(squares)
            return y * rounded(gain, y.dtype)

    def stack(self, path: str) -> Each:
        """Open every rank's part of a stack of matrices."""
        return Each(run.stack(path) for run in self.ranks)

    def looked_up(self, ids: Tokens, path: str) -> Array:
        """Look up the rows that each rank has; a rank adds zeros for those that it has not."""
        if rule_of(path) is None:
            return super().looked_up(ids, path)
        parts = for_each(lambda run: own_rows(run, ids, path), Each(self.ranks))
        return all_sum(self.ranks[0].ops, parts)

    def unembedded(self, x: Any, tied_to: str | None) -> Array:
        """Score the words of every rank, and put them behind each other."""
        parts = for_each(lambda run, x: run.unembedded(x, tied_to), Each(self.ranks), x)
        return self.tap("lm_head", np.concatenate(parts, axis=-1))


def product(run: Run, x: Array, path: str) -> Array:
    """Return one rank's part of a sum: what it makes of its columns, without the bias."""
    run = replace(run, adapters=bare(run.adapters, path))
    return run.projected(x, run.weight(f"{path}.weight"), None, path)


def own_squares(run: Run, path: str) -> Array:
    """Return the squared length of what one rank has of each row of an adapted matrix: (N,)."""
    adapter, weight = run.adapters[path], run.weight(f"{path}.weight")
    lengths = row_lengths(weight, adapter.a, adapter.b, adapter.scale, run.dtype)
    return np.square(np.concatenate(list(lengths)))


def own_rows(run: Run, ids: Tokens, path: str) -> Array:
    """Return the rows of the table that this rank has, and zeros where another one has them."""
    checkpoint: Any = run.checkpoint  # a rank's own
    ((first, stop),) = checkpoint.spans(path)
    here = (ids >= first) & (ids < stop)
    rows = run.looked_up(np.where(here, ids - first, 0), path)
    return np.where(here[..., None], rows, np.zeros((), rows.dtype))
