"""One rank's part of a model."""

from typing import Any

from lockstep.fast.model import Model, Progress
from lockstep.fast.parallel.group import Group, SummingOps
from lockstep.fast.parallel.run import ParallelRun
from lockstep.fast.run import Run
from lockstep.reference.checkpoint.adapters import Adapters
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.parallel.adapting import adapters_of
from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint
from lockstep.reference.checkpoint.parallel.shares import check_ranks


class ParallelModel(Model):
    """The interface of `Model`. It reads its own bytes of the checkpoint, and no others.

    All ranks are to do the same: each forward pass meets the others. Every rank gets all logits.
    Raises: InputError that lists what does not divide.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        group: Group,
        dtype: str,
        backend: Any,
        progress: Progress | None = None,
    ):
        check_ranks(checkpoint, group.size)
        self.group, self.mine = group, RankCheckpoint(checkpoint, group.rank, group.size)
        given: Any = self.mine
        super().__init__(given, dtype=dtype, backend=backend, progress=progress)
        self.checkpoint = checkpoint  # adapters, tokenizers and names are those of the whole

    def own(self, adapters: Adapters) -> Adapters:
        return adapters_of(adapters, self.mine)

    def run(self, **facts: Any) -> Run:
        """Return a forward pass of this rank."""
        told: dict[str, Any] = facts | {"ops": SummingOps(self.ops, self.group)}
        return ParallelRun(**told, group=self.group, checkpoint=self.mine)
