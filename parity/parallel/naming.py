"""Which bugs of ranks make what they dumped: a wrong run gives it where the right one does not.

Each tap is judged by its own inputs, so bugs are found side by side, and in some layers only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any

from lockstep.parity.diffing.plain import rounding
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.explaining.said.diagnosis import Diagnosis, Named
from lockstep.parity.naming.align import align
from lockstep.parity.parallel.compare import chosen_by_all
from lockstep.parity.parallel.faults import BUGS, Bug
from lockstep.parity.parallel.forced import (
    PARTS,
    Judge,
    base,
    failing,
    judged_run,
    passing,
    size,
)  # fmt: skip
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
    figures: dict[str, float] = field(default_factory=dict)  # how far off each tap is with it


@dataclass(frozen=True)
class Tries:
    """Runs with one bug each, which are made when they are first asked for."""

    reference: ParallelModel
    ranks: Ranks
    passes: Sequence[Sequence[int]]
    right: Judge

    @cached_property
    def all(self) -> list[Found]:
        given = (self.reference, self.ranks, self.passes, self.right)
        return [tried_one(bug, *given) for bug in BUGS]


def found_in(tries: Tries) -> list[Found]:
    """Return the bugs that are needed to explain the taps which the right run shows to be wrong.

    Of several that explain the same, the one that spoils least of what is right goes first.
    """
    wrong = failing(tries.right.taps)
    if not wrong:
        return []
    tried = tries.all
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
    return found_in(Tries(reference, ranks, passes, judged_run(reference, ranks, passes)))


def tried_one(
    bug: Bug,
    reference: ParallelModel,
    ranks: Ranks,
    passes: Sequence[Sequence[int]],
    right: Judge,
) -> Found:
    """Run the model with a bug, and see which taps it mends and which it spoils.

    It mends nothing in a layer where parts of a sum were dumped that are not those that it makes.
    """
    other = reference.with_parts(run=bug.run, checkpoint=bug.checkpoint, ops=bug.ops)
    judge = judged_run(other, ranks, passes, right)
    wrong, good = failing(right.taps), passing(judge.taps)
    figures = figures_of(judge)
    spoilt = failing(judge.taps).keys() & passing(right.taps)
    others = {layer_of(tap) for tap in spoilt if right.read_as.get(tap) == PARTS}
    mends = {tap: figures[tap] for tap in wrong if tap in good and layer_of(tap) not in others}
    return Found(bug, mends, len(spoilt), figures=figures)


def figures_of(judge: Judge) -> dict[str, float]:
    """Return how far off each tap is, on the rank where it is farthest."""
    found: dict[str, float] = {}
    for tap in judge.taps:
        name = base(tap.name)
        found[name] = max(size(tap), found.get(name, 0.0))
    return found


def layer_of(tap: str) -> str:
    """Return the layer of a tap, with the step before it; "" outside of all layers."""
    found = LAYER.search(tap)
    return "" if found is None else tap[: found.end()].rstrip(".")


def instead(found: Diagnosis, tries: Tries) -> list[Named]:
    """Take out of a diagnosis the bugs that one of ranks explains as well; return those of ranks.

    What is off by less than `found_in` sees, such as of a sum behind which a norm stands, shows in
    the finer judgement of the whole alone. Which of the two it is nobody can tell, and both are
    said. A bug of ranks fits if it leaves a fourth at most of what the right version leaves.
    """
    inside = [one for one in found.faults if one.taps and tries.right.shapes.keys() >= {*one.taps}]
    if not inside:
        return []
    before, made = figures_of(tries.right), []
    for one in tries.all:
        fits = [fault for fault in inside if fault in found.faults and fits_as_well(
            one.figures, before, fault.taps, rounding(tries.right.dtype))]  # fmt: skip
        if not fits:
            continue
        taps = list(dict.fromkeys(tap for fault in fits for tap in fault.taps))
        mends = {tap: one.figures[tap] for tap in taps if tap in one.figures}
        also = tuple(dict.fromkeys(fault.id for fault in fits))
        new = named_by(Found(one.bug, mends, one.harms, also), before, fits[0].noise)
        found.faults = [fault for fault in found.faults if fault not in fits]
        made.append(new)
    return made


def fits_as_well(
    after: Mapping[str, float], before: Mapping[str, float], taps: Sequence[str], limit: float
) -> bool:
    """Tell whether a bug leaves much less at every tap of some than there was."""
    known = [tap for tap in taps if tap in before and tap in after]
    return bool(known) and all(after[tap] <= min(limit, before[tap] / 4) for tap in known)


def named(found: Found, right: Judge) -> Named:
    """Return what is said of a bug to a porter."""
    return named_by(found, figures_of(right), rounding(right.dtype))


def named_by(found: Found, figures: Mapping[str, float], noise: float) -> Named:
    bug = found.bug
    before = [figures[tap] for tap in found.mends]
    after = [one for one in found.mends.values() if isfinite(one)]
    return Named(
        id=bug.id,
        variant=None,
        taps=list(found.mends),
        layers=sorted(layers(found.mends)),
        confidence=round(SURE / (1 + len(found.also)), 3),
        residual_before=max(before),
        residual_after=max(after, default=0.0),
        noise=noise,
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
