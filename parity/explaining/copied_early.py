"""Taps that are nought everywhere, though the port went on from other numbers: copied too early.

A hook that copies a buffer before a kernel has filled it, or after it was freed, dumps noughts. No
bug of the port made them, so nothing is judged by them: what the port computed next says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.readings import takers_of
from lockstep.parity.explaining.said.diagnosis import Unexplained
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.steps.steps import Joined
from lockstep.parity.naming.grouping import grouped

NEARER = 1 / 2  # of the distance without noughts, that is left with them
FARTHER = 1 / 10  # the other way round: what has bugs of its own is nearer to either by chance
COPIED = (
    "{taps}: nought everywhere, but what follows is not computed from that, and is judged without "
    "it. Was it copied before it was computed?"
)
ALL = (
    "each of the {count} taps that are compared is nought everywhere: if they were copied before "
    "they were computed, what is named here is no bug of the port"
)


def noughts(case: Case) -> frozenset[int]:
    """Return the dumped values that are nought everywhere."""
    judged = filter(case.graph.judges, case.dumped)
    return frozenset(one for one in judged if not case.dumped[one].any())


def nothing_else(case: Case) -> list[str]:
    """Return a doubt if every value of a dump is nought, and there are several."""
    count = len(noughts(case))
    return [ALL.format(count=count)] if 1 < count == len(case.dumped) else []


def all_but_copied_early(case: Case) -> tuple[Joined, list[str]]:
    """Return where the taps are but for those that were copied too early, and a line for these."""
    early = copied_early(case, noughts(case))
    if not early:
        return case.sides, []
    gone = {tap for tap, number in case.graph.taps.items() if number in early}
    kept = {tap: name for tap, name in case.sides.names.items() if tap not in gone}
    taps = grouped([tap for tap in case.sides.names if tap in gone])
    return replace(case.sides, names=kept, moved=Counter()), [COPIED.format(taps=taps)]


def left_out(before: Joined, after: Joined, why: str) -> list[Unexplained]:
    """Return the taps that were left out: what the port had there nobody knows."""
    kept = {*after.names.values()}
    gone = [name for name in before.names.values() if name not in kept]
    return [Unexplained(name, 1.0, 0.0, why) for name in gone]


def copied_early(case: Case, empty: frozenset[int]) -> frozenset[int]:
    """Return the values of these that the port cannot have gone on from."""
    found: frozenset[int] = frozenset()
    without = but_for(case, empty)
    for number in sorted(empty, reverse=True):  # of two in a row the second tells
        if not goes_on_from(number, but_for(case, found), without):
            found |= {number}
    return found


def but_for(case: Case, gone: frozenset[int]) -> Trial:
    """Return the trial of a dump that lacks some values."""
    trial = case.trial.over({})
    taps = {number: tap for number, tap in trial.dumped.taps.items() if number not in gone}
    return replace(trial, dumped=replace(trial.dumped, taps=taps))


def goes_on_from(number: int, there: Trial, gone: Trial) -> bool:
    """Say whether what the port computed next may be computed from a value of noughts.

    `gone` is the trial of the dump without such values: there they are what they should be. What
    is right with noughts alone says so, whatever else that takes them has a bug of its own. Where
    nothing tells, noughts are what the port computed.
    """
    against = False
    for piece in takers_of(number, there):
        if piece.target not in gone.dumped:
            continue  # nought itself, it says nothing
        raw = there.look(piece, {}).raw(0, None)
        without = gone.look(there.graph.piece(piece.target, gone.dumped), {}).raw(0, None)
        passed = there.judge(piece).passed
        if passed and raw < NEARER * without:
            return True
        against |= without < FARTHER * raw and not passed
    return not against
