"""A model that is dealt out to several ranks, all of which run here, one after another."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from pathlib import Path
from typing import Any, Self

from lockstep.reference.caches.make import make_cache
from lockstep.reference.checkpoint.checkpoint import Checkpoint, open_checkpoint
from lockstep.reference.checkpoint.parallel.adapting import adapters_of
from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint
from lockstep.reference.checkpoint.parallel.shares import check_ranks
from lockstep.reference.model import Model
from lockstep.reference.parallel.cache import EachCache
from lockstep.reference.parallel.each import OpsForEach
from lockstep.reference.parallel.run import ParallelRun
from lockstep.reference.run import Run
from lockstep.reference.stores.kinds import CacheOptions


class ParallelModel(Model):
    """The interface of `Model`, over `ranks` ranks.

    A tap that ranks have of their own (heads, inner numbers) comes as an `Each`, one array a rank;
    one that all have alike comes as an array.
    """

    def __init__(self, checkpoint: Checkpoint, *, ranks: int, dtype: str, ops: Any):
        check_ranks(checkpoint, ranks)
        super().__init__(checkpoint, dtype=dtype, ops=ops)
        self.ranks = [RankCheckpoint(checkpoint, rank, ranks) for rank in range(ranks)]
        self.together, self.ops_of_ranks = ParallelRun, OpsForEach

    def with_parts(
        self,
        *,
        run: type[ParallelRun] | None = None,
        checkpoint: type[RankCheckpoint] | None = None,
        ops: type[OpsForEach] | None = None,
    ) -> Self:
        """Return this model with another kind of run, of operations, or of what a rank has."""
        other, whole, count = copy(self), self.ranks[0].whole, len(self.ranks)
        other.together, other.ops_of_ranks = run or self.together, ops or self.ops_of_ranks
        if checkpoint is not None:
            other.ranks = [checkpoint(whole, rank, count) for rank in range(count)]
        return other

    def make_cache(self, kind: str | None = None, **told: Any) -> Any:
        """Return an empty cache for each rank, of its own heads; see `Model.make_cache`."""
        options = CacheOptions(**told)
        kind = kind or "concatenating"
        return EachCache([make_cache(kind, one.config, options=options) for one in self.ranks])

    def run(self, **facts: Any) -> Run:
        """Return a forward pass with a run for each rank inside."""
        alone = []
        for checkpoint in self.ranks:
            mine = adapters_of(self.adapters, checkpoint)
            own = {"adapters": mine.modules, "replaced": mine.weights, "trace": None}
            told: dict[str, Any] = facts | {"checkpoint": checkpoint} | own
            alone.append(Run(**told))
        together: dict[str, Any] = vars(alone[0]) | {"ops": self.ops_of_ranks(self.ops)}
        return self.together(**together | {"trace": facts["trace"]}, ranks=tuple(alone))


def load(
    path: str | Path,
    adapter: str | Path | None = None,
    *,
    ranks: int,
    dtype: str = "float32",
    ignore_config: Collection[str] = (),
) -> ParallelModel:
    """Open a checkpoint, dealt out to `ranks` ranks; else as `reference.load`.

    Raises: InputError that lists what does not divide.
    """
    from lockstep.reference import ops

    checkpoint = open_checkpoint(path, ignore_config=ignore_config)
    model = ParallelModel(checkpoint, ranks=ranks, dtype=dtype, ops=ops)
    return model if adapter is None else model.with_adapter(adapter, ignore_config=ignore_config)
