"""Matrices that a port puts above each other, and then cuts as if they were one."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint, stacked


class CutAsOne(RankCheckpoint):
    """Rank r has the rows of part r of N of all matrices together, shared out in their order."""

    modules: tuple[str, ...] = ()

    def tensor(self, name: str) -> Any:
        module, _, kind = name.rpartition(".")
        end = next((one for one in self.modules if module.endswith(one)), None)
        if end is None or kind not in ("weight", "bias") or not self.evenly(module, end):
            return super().tensor(name)
        home = module.removesuffix(end)
        before = [sum(self.widths(home + one)[: self.rank]) for one in self.modules]
        own = [self.widths(home + one)[self.rank] for one in self.modules]
        place = self.modules.index(end)
        first = sum(before) + sum(own[:place])
        return self.rows(home, kind, first, first + own[place])

    def evenly(self, module: str, end: str) -> bool:
        """Tell whether the ranks share nothing, so that their parts are all there is."""
        modules = [module.removesuffix(end) + one for one in self.modules]
        return all(
            self.whole.has(f"{one}.weight")
            and sum(self.widths(one)) == self.whole.stored(f"{one}.weight").shape[-2]
            for one in modules
        )

    def rows(self, home: str, kind: str, first: int, stop: int) -> Any:
        """Read rows that are counted through all of the matrices."""
        begin, found = 0, []
        for one in self.modules:
            name = f"{home}{one}.{kind}"
            size = self.whole.stored(name).shape[0]
            low, high = max(first - begin, 0), min(stop - begin, size)
            if low < high:
                found.append(self.whole.tensor_part(name, ((low, high),), None))
            begin += size
        return stacked(found, np.concatenate)


class FusedAttention(CutAsOne):
    """Queries, keys and values."""

    modules = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


class FusedGates(CutAsOne):
    """The two matrices of a gated MLP."""

    modules = ("mlp.gate_proj", "mlp.up_proj")
