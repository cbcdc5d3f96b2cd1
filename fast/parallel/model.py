"""One rank's part of a model."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Self

import numpy as np

from lockstep.fast.model import Model, Progress
from lockstep.fast.parallel.group import Group, SummingOps
from lockstep.fast.parallel.run import ParallelRun
from lockstep.fast.run import Run
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.adapters import Adapters
from lockstep.reference.checkpoint.checkpoint import Checkpoint
from lockstep.reference.checkpoint.parallel.adapting import adapters_of
from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint
from lockstep.reference.checkpoint.parallel.rules import rule_of
from lockstep.reference.checkpoint.parallel.shares import check_ranks


class ParallelModel(Model):
    """The interface of `Model`. It reads its own bytes of the checkpoint, and no others.

    All ranks are to do the same: each forward pass meets the others. Every rank gets all logits.
    Whose row of the table an id is, the host says; so no step runs ahead of it.
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
        self.gains: dict[str, Array] = {}
        self.checkpoint = checkpoint  # adapters, tokenizers and names are those of the whole

    def reader(self, checkpoint: Checkpoint) -> Callable[[str], Any]:
        return checkpoint.tensor

    @property
    def runs_ahead(self) -> bool:
        return False

    @property
    def has_unheard_way(self) -> bool:
        return False

    def own(self, adapters: Adapters) -> Adapters:
        return adapters_of(adapters, self.mine)

    def with_adapter(
        self, adapter: str | Path | None, *, ignore_config: Collection[str] = ()
    ) -> Self:
        """Return this model with another adapter, or with none. All ranks are to do the same."""
        other = super().with_adapter(adapter, ignore_config=ignore_config)
        other.gains = {
            path: other.gain_of(path, one) for path, one in other.adapters.modules.items()
            if one.magnitude is not None and summed(path)
        }  # fmt: skip
        return other

    def gain_of(self, path: str, adapter: Any) -> Array:
        """Return what DoRA multiplies each row of a sum by: its length over what it has. (N,)

        Each rank has a part of every row, and its squares; they are added up once, at the start.
        """
        ones = self.put(np.ones(len(adapter.magnitude), np.float32))
        rows = (self.weights[f"{path}.weight"], None, adapter.a, adapter.b, ones)
        inverse = self.backend.host(self.ops.dora_rescale(ones[None], *rows, scale=adapter.scale))
        with np.errstate(divide="ignore", invalid="ignore"):
            squares = self.group.all_sum(1 / np.square(inverse[0]))
            return self.put(self.backend.host(adapter.magnitude) / np.sqrt(squares))

    def run(self, **facts: Any) -> Run:
        """Return a forward pass of this rank."""
        told: dict[str, Any] = facts | {"ops": SummingOps(self.ops, self.group), "layers": None}
        return ParallelRun(**told, group=self.group, checkpoint=self.mine, gains=self.gains)


def summed(path: str) -> bool:
    """Tell whether ranks make parts of what a module makes."""
    rule = rule_of(path)
    return rule is not None and rule.axis == "columns"
