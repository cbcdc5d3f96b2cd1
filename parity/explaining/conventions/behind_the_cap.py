"""What a port calls its head, and dumps behind the softcap: logits, by their values.

Only that way round: what is called logits, and lacks the cap, is a bug.
"""

from __future__ import annotations

from dataclasses import replace

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.steps.steps import Joined

HEAD, LOGITS = "lm_head", "logits"
SAID = "{name} is dumped behind the softcap, as its values say: read as logits"


def behind_the_cap(case: Case) -> tuple[Joined, list[str]]:
    """Return where the taps are if what is called the head holds logits, and a line if so."""
    names, taps = case.sides.names, case.graph.taps
    if HEAD not in names or LOGITS in names or taps.get(HEAD) in (None, taps.get(LOGITS)):
        return case.sides, []
    if is_right(case, HEAD):
        return case.sides, []
    sides = renamed(case.sides)
    other = Case(case.model, case.graph, sides, case.dtype, [*case.faults.values()])
    sides.moved.clear()  # the case that is made of them counts anew
    return (sides, [SAID.format(name=names[HEAD])]) if is_right(other, LOGITS) else (case.sides, [])


def renamed(sides: Joined) -> Joined:
    """Return where the taps are with the head's taken for the logits."""
    names, parts = (
        {LOGITS if tap == HEAD else tap: one for tap, one in known.items()}
        for known in (sides.names, sides.parts)
    )
    last = frozenset(LOGITS if tap == HEAD else tap for tap in sides.last)
    return replace(sides, names=names, parts=parts, last=last)


def is_right(case: Case, tap: str) -> bool:
    number = case.graph.taps[tap]
    if number not in case.dumped:  # of another shape
        return False
    return case.trial.judge(case.graph.piece(number, case.dumped)).passed
