"""A bug of several that takes nothing of the error away, but makes the noise wider.

In half precision what other bugs leave may be a little over a limit in one token. A bug that rounds
coarsely lets it pass beside them, though the port is no nearer to where both lead. Or a small bug
goes where others that round coarsely happen to, in one of like pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.deciding.kept import keep
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.exchange import of_like
from lockstep.parity.explaining.searching.hypothesis import Atom, in_order, rewritten
from lockstep.parity.explaining.searching.look import Look
from lockstep.parity.judging.judge import LIMITS, Judgement

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.graph.graph import Piece

ALL, WORST = 0.8, 0.5  # of the squared error: what is left at most, over all or of the worst token
OVER = 1.25  # times a limit, that what is left may be without such a bug


def keep_helping(case: Case) -> None:
    """Take bugs that help nothing out of explanations; open what is not explained without them."""
    if case.trial.dtype.itemsize > 2:
        return
    keep(case, lambda piece, one: without_idle(piece, one, case))


def without_idle(piece: Piece, one: Explanation, case: Case) -> list[Explanation]:
    """Return an explanation without the bugs that help nothing; none if too much is left then."""
    atoms = one.atoms
    for atom in in_order(atoms):
        if len(atoms) > 1 and is_idle(piece, atoms, atoms - {atom}, case):
            atoms = atoms - {atom}
        elif judged := by_chance(atom, atoms, piece, case):
            return [Explanation(atoms - {atom}, judged, one.complete)]
    if atoms == one.atoms:
        return [one]
    judged = case.trial.judge(piece, rewritten(atoms, case.graph))
    return [Explanation(atoms, judged, one.complete)] if is_near(judged, case) else []


def by_chance(atom: Atom, atoms: Atoms, piece: Piece, case: Case) -> Judgement | None:
    """Return how the other bugs do without one that is not coarse, if they pass as far as the
    coarse ones of them can tell, and explain a like piece without it; else None.
    """
    others = {one.hypothesis for one in atoms} - {atom.hypothesis}
    coarse = any(one.fault.coarse for one in others) and not atom.hypothesis.fault.coarse
    alike = of_like(piece, case.explained, case.graph) if coarse else []
    if not any(others in sets for sets in alike):
        return None
    judged = case.trial.judge(piece, rewritten(atoms - {atom}, case.graph), coarse=True)
    return judged if judged.passed else None


def is_idle(piece: Piece, atoms: Atoms, fewer: Atoms, case: Case) -> bool:
    """Say whether the port is as far from what some bugs make as from what fewer of them do."""
    together, without = (rewritten(some, case.graph) for some in (atoms, fewer))
    if not together or not without:
        return False
    return not helps(*(case.trial.look(piece, calls) for calls in (together, without)))


@np.errstate(all="ignore")  # a broken port may hold anything
def helps(together: Look, without: Look) -> bool:
    """Say whether a bug takes a clear part of the error away, of all tokens or of the worst one.

    Behind a router, where some tokens were turned, that is not asked.
    """
    if not (together.careful and without.careful):
        return True
    left, before = together.port, without.port
    worst = int(np.argmax(before / without.wrong))
    return not (left.sum() >= ALL * before.sum() and left[worst] >= WORST * before[worst])


def is_near(judged: Judgement, case: Case) -> bool:
    limits = LIMITS[case.trial.dtype.name]
    return judged.ratio <= OVER * limits.whole and judged.row_ratio <= OVER * limits.row
