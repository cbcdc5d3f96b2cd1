"""Which bugs of ranks make what they dumped: a wrong run gives it where the right one does not.

Each tap is judged by its own inputs, so bugs are found side by side, and in some layers only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from lockstep.parity.diffing.plain import rounding
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explaining.said.diagnosis import Named
from lockstep.parity.naming.align import align
from lockstep.parity.parallel.compare import chosen_by_all
from lockstep.parity.parallel.faults import BUGS, Bug
from lockstep.parity.parallel.forced import Judge, base, failing, judged_run, passing, size
from lockstep.parity.parallel.ranks import Ranks, path_in
from lockstep.reference.parallel.model import ParallelModel

LAYER = re.compile(r"(?:layers|h)\.([0-9]+)(?:\.|$)")
SURE = 0.99


@dataclass(frozen=True)
class Found:
    """A bug, the taps that it alone explains, what is left of their error, and what fits as well.

    `harms` counts the taps that are right, and that this bug would spoil: layers without it.
    """

    bug: Bug
    mends: dict[str, float]
    harms: int
    also: tuple[str, ...] = ()


def found_in(
    reference: ParallelModel, ranks: Ranks, passes: Sequence[Sequence[int]], right: Judge
) -> list[Found]:
    """Return the bugs that are needed to explain the taps which `right` shows to be wrong.

    Of several that explain the same, the one that spoils least of what is right goes first.
    """
    wrong = failing(right.taps)
    if not wrong:
        return []
    tried = [tried_one(bug, reference, ranks, passes, right) for bug in BUGS]
    open_taps, chosen = set(wrong), []
    while open_taps:
        best = max(tried, key=lambda one: (len(one.mends.keys() & open_taps), -one.harms))
        mended = {tap: left for tap, left in best.mends.items() if tap in open_taps}
        if not mended:
            break
        also = {one.bug.id for one in tried
                if mended.keys() <= one.mends.keys() and one.harms <= best.harms}  # fmt: skip
        fits = tuple(sorted(also - {best.bug.id}))
        chosen.append(Found(best.bug, mended, best.harms, fits))
        open_taps -= mended.keys()
    return chosen


def found_in_traces(
    reference: ParallelModel, dumps: Sequence[Dump], tokens: Sequence[int], *, decode: int
) -> list[Found]:
    """Return the bugs that traces of all ranks show, of a prompt and of steps behind it."""
    ranks = Ranks(tuple(align(dump) for dump in dumps))
    chosen = chosen_by_all(reference, dumps, decode)
    passes = [[*tokens], *([one] for one in chosen)]
    return found_in(reference, ranks, passes, judged_run(reference, ranks, passes))


def tried_one(
    bug: Bug,
    reference: ParallelModel,
    ranks: Ranks,
    passes: Sequence[Sequence[int]],
    right: Judge,
) -> Found:
    """Run the model with a bug, and see which taps it mends and which it spoils."""
    other = reference.with_parts(run=bug.run, checkpoint=bug.checkpoint, ops=bug.ops)
    judge = judged_run(other, ranks, passes, right)
    wrong, good = failing(right.taps), passing(judge.taps)
    figures = {base(tap.name): size(tap) for tap in judge.taps}
    mends = {tap: figures[tap] for tap in wrong if tap in good}
    harms = len(failing(judge.taps).keys() & passing(right.taps))
    return Found(bug, mends, harms)


def named(found: Found, right: Judge) -> Named:
    """Return what is said of a bug to a porter."""
    wrong, bug = failing(right.taps), found.bug
    before = [size(wrong[tap]) for tap in found.mends]
    after = [one for one in found.mends.values() if isfinite(one)]
    return Named(
        id=bug.id,
        variant=None,
        taps=list(found.mends),
        layers=sorted(layers(found.mends)),
        confidence=round(SURE / (1 + len(found.also)), 3),
        residual_before=max(before),
        residual_after=max(after, default=0.0),
        noise=rounding(right.dtype),
        runner_up=None,
        also_fits=[*found.also],
        fix=bug.fix,
        wrong=bug.wrong,
        right=bug.right,
    )


def layers(taps: Any) -> set[int]:
    """Return the numbers of the layers that taps are in."""
    found = (LAYER.search(path_in(tap)) for tap in taps)
    return {int(one[1]) for one in found if one is not None}
