"""How many choices were turned to those of a port, if rounding does so, and what is said of it.

The legal ways tell how many that may be: their scores differ from float64's as a right port's do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lockstep.parity.cli.output import counted
from lockstep.parity.torch_modules.choices import largest_of
from lockstep.parity.torch_modules.replays import Replayed

SOME, TIMES = 3, 2  # a port may turn so many, and so many times what a legal way turns at most
TAKEN = "{count} of experts within rounding of a tie: taken as the port made them"
REFUSED = "{count} of experts would have to be turned, but {most} at most are rounding: none taken"
CUT = "the search for choices within rounding of a tie ended after {count}"


@dataclass(frozen=True)
class Turns:
    """How many choices were turned, the most that one legal way turns, and, if the search was cut
    short, after how many runs."""

    count: int = 0
    ways: int = 0
    cut: int = 0

    @property
    def most(self) -> int:
        return SOME + TIMES * self.ways

    @property
    def legal(self) -> bool:
        return self.count <= self.most


def turned_by_ways(replay: Replayed, numbers: Collection[int]) -> int:
    """Return how many choices a legal way would turn by its own scores, at most."""

    def turned(number: int, way: str) -> int:
        centre, other = replay.centre.choices[number], replay.ways[way].choices.get(number)
        if other is None or other.scores.shape != centre.scores.shape:
            return 0
        return int((largest_of(other) != largest_of(centre)).any(axis=-1).sum())

    return max(sum(turned(number, way) for number in numbers) for way in replay.ways)


def said(rows: Sequence[Turns]) -> list[str]:
    """Say once for all rows of a batch what was turned, what was not, and what was cut short."""
    lines: list[str] = []
    if taken := [row for row, one in enumerate(rows) if one.count and one.legal]:
        count = counted(sum(rows[row].count for row in taken), "choice")
        lines += [TAKEN.format(count=count) + where(taken, rows)]
    if refused := [row for row, one in enumerate(rows) if not one.legal]:
        count = counted(sum(rows[row].count for row in refused), "choice")
        most = sum(rows[row].most for row in refused)
        lines += [REFUSED.format(count=count, most=most) + where(refused, rows)]
    if cut := [row for row, one in enumerate(rows) if one.cut]:
        count = counted(rows[cut[0]].cut, "run")
        lines += [CUT.format(count=count) + where(cut, rows)]
    return lines


def where(some: Sequence[int], rows: Sequence[Turns]) -> str:
    if len(rows) == 1:
        return ""
    return f", in row{'s' * (len(some) > 1)} {', '.join(map(str, some))}"
