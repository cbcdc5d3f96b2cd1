"""Explain what is wrong in steps alone by bugs that a prompt could have too.

A port may read a prompt by other code than that which goes on from it, such as a kernel for one
token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from lockstep.parity.explaining.searching.hypothesis import hypotheses
from lockstep.parity.explaining.steps.whereabouts import wrong_tokens
from lockstep.parity.faults.in_steps import in_steps_alone
from lockstep.parity.graph.graph import Piece

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

OF_STEPS = ("kv_cache", "decoding", "speculative", "batches")  # families that are in steps anyway
Progress = Callable[[str], None]


def explain_steps(case: Case, progress: Progress) -> None:
    """Explain what is wrong in steps alone by one bug: as it is known, else in these alone.

    What explains nothing there is thought of no more.
    """
    waiting = try_each(case, [one for one in case.wrong if is_of_steps(one, case)], progress)
    if not waiting:
        return
    apart = (one for one in case.faults.values() if one.family not in OF_STEPS)
    more = hypotheses([in_steps_alone(one) for one in apart if not one.convention], case.graph)
    case.hypotheses = [*case.hypotheses, *more]
    case.atoms.clear()
    try_each(case, waiting, progress)
    found = {*case.bugs()}
    case.forget([one for one in more if one not in found])


def try_each(case: Case, pieces: Collection[Piece], progress: Progress) -> list[Piece]:
    """Look for one bug for each piece; return those that have none."""
    case.open = []
    for piece in pieces:
        case.explain(piece, Counter(case.bugs()), deep=False)
        progress(case.tap(piece))
    return case.open


def is_of_steps(piece: Piece, case: Case) -> bool:
    """Say whether all of the prompt is right, and something behind it is not."""
    if not case.graph.steps:
        return False
    wrong, first = wrong_tokens(piece, case), case.graph.steps[0]
    return not wrong[:, :first].any() and bool(wrong[:, first:].any())
