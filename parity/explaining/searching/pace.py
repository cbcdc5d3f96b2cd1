"""Whether a search that adds bug after bug still gets nearer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lockstep.parity.explaining.searching.earned import LESS

MUCH = 0.8  # of what was left before: a step that leaves no more comes much nearer
IN_A_ROW = 2  # steps that bring nothing nearer: one may be of a bug that hides behind another


@dataclass
class Pace:
    """The least that each measure of a search left so far."""

    least: dict[int, float] = field(default_factory=dict)
    idle: int = 0
    last: tuple[float, ...] = ()  # what the step before left
    quick: bool = False  # whether the last one came much nearer than that, by any measure

    def stalls(self, *left: float) -> bool:
        """Say whether a few steps in a row left about what was left before, by every measure."""
        before = [self.least.get(place, math.inf) for place in range(len(left))]
        nearer = (now < LESS * then for now, then in zip(left, before, strict=True))
        self.idle = 0 if any(nearer) else self.idle + 1
        self.quick = any(now <= MUCH * then for now, then in zip(left, self.last, strict=False))
        self.last = left
        self.least = dict(enumerate(map(min, left, before)))
        return self.idle >= IN_A_ROW
