"""One forward pass of several ranks: where each works alone, and where all are added.

The model's file is the same as ever. Between two projections of a pair, the first cut by rows and
the second by columns, every rank has its own heads or its own inner numbers; behind the second
their parts are summed, and all ranks have the same again. That is twice in a layer, and three times
in one that has experts beside its MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.parallel.rules import rule_of
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

        The bias is added once, to the sum.
        """
        rule = rule_of(path)
        if rule is None:
            return super().linear(x, path)
        if rule.axis == "rows":
            own = for_each(lambda run, x: run.linear(x, path), Each(self.ranks), x)
            return self.tap(path, own)
        parts = for_each(lambda run, x: product(run, x, path), Each(self.ranks), x)
        y, bias = all_sum(self.ranks[0].ops, parts), f"{path}.bias"
        if self.checkpoint.has(bias):
            y = y + rounded(self.weight(bias), y.dtype)
        return self.tap(path, y)

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
    return run.projected(x, run.weight(f"{path}.weight"), None, path)


def own_rows(run: Run, ids: Tokens, path: str) -> Array:
    """Return the rows of the table that this rank has, and zeros where another one has them."""
    checkpoint: Any = run.checkpoint  # a rank's own
    ((first, stop),) = checkpoint.spans(path)
    here = (ids >= first) & (ids < stop)
    rows = run.looked_up(np.where(here, ids - first, 0), path)
    return np.where(here[..., None], rows, np.zeros((), rows.dtype))
