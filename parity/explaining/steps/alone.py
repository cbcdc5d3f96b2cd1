"""Explain what is wrong in steps alone by bugs that a prompt could have too.

A port may read a prompt by other code than that which goes on from it, such as a kernel for one
token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.searching.hypothesis import hypotheses
from lockstep.parity.explaining.steps.whereabouts import wrong_tokens
from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.in_steps import ALONE, CHUNKED, SINGLY, in_steps_alone
from lockstep.parity.faults.passes import fed_with, numbered
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
    which = dict.fromkeys(steps_of(piece, case) for piece in waiting)
    more = hypotheses(apart(case, which), case.graph)
    case.hypotheses = [*case.hypotheses, *more]
    case.atoms.clear()
    try_each(case, waiting, progress)
    found = {*case.bugs()}
    case.forget([one for one in more if one not in found])


def apart(case: Case, which: Iterable[str]) -> Iterator[Fault]:
    """Yield bugs in some steps alone. A bug of all steps is known without that."""
    for name, one in product(which, case.faults.values()):
        if not one.convention and (name != ALONE or one.family not in OF_STEPS):
            yield in_steps_alone(one, name)


def steps_of(piece: Piece, case: Case) -> str:
    """Say in which steps a piece is wrong: of one token, of several, or in whichever."""
    wrong = np.asarray(wrong_tokens(piece, case).any(axis=0))
    several = fed_with(case.graph, len(wrong), len(wrong)) > 1
    later = numbered(case.graph, len(wrong)) > 0
    if several[later].all() or not several[later].any():
        return ALONE
    if several[wrong].all():
        return CHUNKED
    return ALONE if several[wrong].any() else SINGLY


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
