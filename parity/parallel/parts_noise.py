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
from lockstep.parity.parallel.forced import Judge, judged_run
from lockstep.parity.parallel.ranks import Ranks, path_in
from lockstep.reference.parallel.model import ParallelModel

SUMMED = re.compile(r".*(o_proj|down_proj|c_proj|experts)")
TIMES = 2.0  # the two are errors of one kind, over all numbers of a tap
ROUNDED = "the ranks round their parts before they are summed, which is all that is off in "


class Kept(Judge):
    """A judge that also keeps what a run makes of a few taps."""

    def watch(self, taps: frozenset[str]) -> None:
        self.watched, self.values = taps, dict[str, np.ndarray]()

    def __call__(self, name: str, value: Any) -> Any:
        if self.prefix + name in self.watched:
            self.values[self.prefix + name] = np.asarray(value, np.float64)
        return super().__call__(name, value)


def without_rounded_parts(
    found: Diagnosis, reference: ParallelModel, ranks: Ranks, passes: Sequence[Sequence[int]]
) -> None:
    """Take out of a diagnosis what is off by no more than the rounding of parts, and say that."""
    suspects = {one.tap for one in found.unexplained} | {
        t for one in found.faults for t in one.taps
    }
    taps = frozenset(tap for tap in suspects if SUMMED.fullmatch(path_in(tap)))
    if reference.dtype == "float32" or not taps:
        return
    exact = ParallelModel(
        reference.checkpoint, ranks=len(ranks.sides), dtype="float32", ops=reference.ops
    )
    exact.adapters = reference.adapters
    wide, rounded = (values_of(one, ranks, passes, taps) for one in (exact, reference))
    fine = {tap for tap in taps & wide.keys() & rounded.keys()
            if is_rounding(ranks, tap, wide[tap], rounded[tap])}  # fmt: skip
    found.unexplained = [one for one in found.unexplained if one.tap not in fine]
    found.faults = [one for one in found.faults if not (one.taps and fine >= {*one.taps})]
    if fine:
        found.conventions.append(f"{ROUNDED}{len(fine)} taps, such as {min(fine)}")


def values_of(
    model: ParallelModel, ranks: Ranks, passes: Sequence[Sequence[int]], taps: frozenset[str]
) -> dict[str, np.ndarray]:
    """Return what a run from the port's own inputs makes of some taps."""
    judge = Kept(ranks, model.dtype)
    judge.watch(taps)
    judged_run(model, ranks, passes, judge=judge)
    return judge.values


def is_rounding(ranks: Ranks, tap: str, wide: np.ndarray, rounded: np.ndarray) -> bool:
    """Tell whether a port is as near to the truth as its rounding lets it be."""
    port = ranks.read(tap, ranks.wrote(tap)[0], wide.shape)
    if port.shape != wide.shape:
        return False
    allowed = TIMES * rms(difference(rounded, wide))
    return bool(rms(difference(port, wide)) <= allowed)
