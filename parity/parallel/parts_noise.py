"""What it costs to round the parts of a sum: ranks in half precision do so, and one rank does not.

A gate that knows one product finds this too coarse. So where it does, the ranks' own rounding is
the measure: a run of the reference's ranks in the port's dtype, from the port's own inputs, against
one in float32.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.parity.explaining.said.diagnosis import Diagnosis
from lockstep.parity.judging.metrics import difference, rms
from lockstep.parity.parallel.forced import PARTS, Judge, judged_run
from lockstep.parity.parallel.ranks import Ranks, path_in
from lockstep.reference.parallel.each import Each, all_sum
from lockstep.reference.parallel.model import ParallelModel

SUMMED = re.compile(r".*(o_proj|down_proj|c_proj|experts)")
TIMES = 2.0  # the two are errors of one kind, over all numbers of a tap
ROUNDED = "the ranks round their parts before they are summed, which is all that is off in "


class Kept(Judge):
    """A judge that also keeps what a run makes of a few taps, and adds parts as ranks do."""

    def watch(self, taps: frozenset[str], ops: Any) -> None:
        self.watched, self.values, self.ops = taps, dict[str, np.ndarray](), ops

    def summed(self, ports: Sequence[np.ndarray], whole: np.ndarray) -> np.ndarray:
        return all_sum(self.ops, Each(port.astype(whole.dtype) for port in ports))

    def __call__(self, name: str, value: Any) -> Any:
        if self.prefix + name in self.watched and not isinstance(value, Each):
            self.values[self.prefix + name] = np.asarray(value, np.float64)
        return super().__call__(name, value)


def without_rounded_parts(
    found: Diagnosis,
    reference: ParallelModel,
    ranks: Ranks,
    passes: Sequence[Sequence[int]],
    right: Judge,
) -> None:
    """Take out of a diagnosis what is off by no more than the rounding of parts, and say that.

    Where parts were dumped their sum is in no tap, and shows in what takes it: any tap may.
    """
    suspects = {one.tap for one in found.unexplained} | {
        t for one in found.faults for t in one.taps
    }
    dumped = PARTS in right.read_as.values()
    taps = frozenset(tap for tap in suspects if dumped or SUMMED.fullmatch(path_in(tap)))
    if reference.dtype == "float32" or not taps:
        return
    exact = ParallelModel(
        reference.checkpoint, ranks=len(ranks.sides), dtype="float32", ops=reference.ops
    )
    exact.adapters = reference.adapters
    wide, rounded = (values_of(one, right, passes, taps) for one in (exact, reference))
    fine = {
        tap
        for tap in taps & wide.keys() & rounded.keys()
        if is_rounding(ports_of(ranks, tap, right, wide[tap]), wide[tap], rounded[tap])
    }
    found.unexplained = [one for one in found.unexplained if one.tap not in fine]
    found.faults = [one for one in found.faults if not (one.taps and fine >= {*one.taps})]
    if fine:
        found.conventions.append(f"{ROUNDED}{len(fine)} taps, such as {min(fine)}")


def values_of(
    model: ParallelModel, right: Judge, passes: Sequence[Sequence[int]], taps: frozenset[str]
) -> dict[str, np.ndarray]:
    """Return what a run from the port's own inputs makes of some taps; parts are read as before."""
    judge = Kept(right.ranks, right.dtype)
    judge.watch(taps, model.ops)
    judged_run(model, right.ranks, passes, judge=judge)
    return judge.values


def ports_of(ranks: Ranks, tap: str, right: Judge, like: np.ndarray) -> list[np.ndarray]:
    """Return what every rank that dumped a tap has of it; of parts their one sum."""
    found = [ranks.read(tap, rank, like.shape) for rank in ranks.wrote(tap)]
    if right.read_as.get(tap) == PARTS:
        return [np.sum([one.astype(np.float64) for one in found], axis=0)]
    return found


def is_rounding(ports: Sequence[np.ndarray], wide: np.ndarray, rounded: np.ndarray) -> bool:
    """Tell whether every rank is as near to the truth as its rounding lets it be."""
    if any(port.shape != wide.shape for port in ports):
        return False
    allowed = TIMES * rms(difference(rounded, wide))
    return all(bool(rms(difference(port, wide)) <= allowed) for port in ports)
