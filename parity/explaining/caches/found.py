"""What `explain` found in the caches of a dump, and how it is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.caches.bugs import Bug
from lockstep.parity.explaining.caches.taps import Kept
from lockstep.parity.explaining.said.diagnosis import Named, Unexplained

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

Arrays = dict[str, dict[int, np.ndarray]]  # of each tap, after each pass: (B, G, S, D)
SURE = 0.99


@dataclass
class Cached:
    """What was found in the caches of a dump."""

    bugs: list[Named] = field(default_factory=list)
    open: list[Unexplained] = field(default_factory=list)
    told: dict[str, None] = field(default_factory=dict)
    compared: set[str] = field(default_factory=set)  # taps of caches
    handed: set[str] = field(default_factory=set)  # those that are judged as keys and values

    @property
    def unjudged(self) -> int:
        """How many were judged here alone."""
        return len(self.compared - self.handed)


def name_of(part: Kept, case: Case, step: int | None = None) -> str:
    """Return the name of a tap behind a pass, the first one that has it if none is told."""
    names = case.sides.caches[part.tap]
    return names[min(names) if step is None else step]


def accuse(
    bug: Bug,
    parts: Sequence[Kept],
    case: Case,
    found: Cached,
    *,
    before: float = 1.0,
    where: str = "",
    step: int | None = None,
) -> None:
    """Name a bug that a cache shows, or say what it looks like if that is not looked for."""
    if bug.id in case.faults:
        found.bugs.append(named(bug, parts, where, case, before, step))
        return
    said = f"looks like {bug.id}, which was not looked for"
    found.open.append(Unexplained(name_of(parts[0], case, step), before, 0.0, said, "", where))


def named(
    bug: Bug, parts: Sequence[Kept], where: str, case: Case, before: float, step: int | None
) -> Named:
    """Return what is said of a bug that a cache shows."""
    fault = case.faults[bug.id]
    return Named(
        id=bug.id,
        variant=bug.variant or None,
        taps=[name_of(part, case, step) for part in parts],
        layers=sorted({part.layer for part in parts}),
        confidence=round(SURE / (1 + len(bug.also)), 3),
        residual_before=before,
        residual_after=0.0,
        noise=0.0,
        runner_up=None,
        also_fits=list(bug.also),
        fix=fault.fix,
        wrong=fault.wrong,
        right=fault.right,
        where=where,
    )
