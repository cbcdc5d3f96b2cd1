"""What passes the gate, though the port is not where it leads.

A bug that hardly shows may pass in the place of another that goes its way, half as far or twice as
far. What is left then is in line with what the bug changes; what rounding leaves is not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.deciding.duel import Way, way
from lockstep.parity.explaining.deciding.kept import keep_if
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import rewritten
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph.graph import Piece
from lockstep.parity.graph.refusals import if_computable
from lockstep.parity.judging.metrics import difference, rms

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

OFF = 0.3  # of the way that a bug leads, that the port may be off its end


def keep_ended(case: Case) -> None:
    """Take out what explains a piece whose port is elsewhere on its way; open what has nothing."""
    keep_if(case, lambda piece, one: ended(piece, one, case.trial))


def ended(piece: Piece, one: Explanation, trial: Trial) -> bool:
    """Say whether the port is at the end of the way of each bug, as far as that can be told.

    Behind a router, and where tokens prove nothing, it cannot; nor of a bug that rounds to a coarse
    grid.
    """
    fine = [atom for atom in one.atoms if not atom.hypothesis.fault.coarse]
    if not fine or trial.routers_of(piece) or piece.target in trial.unseen:
        return True
    whole = made(piece, one.atoms, trial)
    if whole is None:
        return True
    noise = noise_of(piece, whole, trial, coarse=len(fine) < len(one.atoms))
    found = (led(piece, one.atoms - {atom}, whole, noise, trial) for atom in fine)
    return all(not part.long or abs(part.along / part.size - 1) <= OFF for part in found)


def led(piece: Piece, rest: Atoms, whole: np.ndarray, noise: float, trial: Trial) -> Way:
    """Return the way from what some bugs make of a piece to the `whole` that more of them do."""
    value = made(piece, rest, trial)
    port = trial.port(piece.target)
    if value is None or not value.shape == whole.shape == port.shape:
        return Way()
    there = [trial.tokens(some, piece.target) for some in (port, value, whole)]
    return way(there[0], there[1], there[2], noise)


def made(piece: Piece, atoms: Atoms, trial: Trial) -> np.ndarray | None:
    """Return what bugs make of a piece; None if they contradict each other, or cannot be here."""
    if (calls := rewritten(atoms, trial.graph)) is None:
        return None
    trial.count += 1
    with if_computable(), np.errstate(all="ignore"):  # a broken port may hold anything
        return trial.centre(None).target(piece.target, calls)
    return None


@np.errstate(all="ignore")
def noise_of(piece: Piece, whole: np.ndarray, trial: Trial, *, coarse: bool) -> float:
    """Return what rounding leaves, as a share of a value.

    A `coarse` grid turns ties, which nobody foresees: there it is all that the bugs leave.
    """
    noise, port = trial.relative_noise(piece, None), trial.port(piece.target)
    if not coarse or whole.shape != port.shape:
        return noise
    left = rms(difference(port, whole)) / (rms(whole) or 1.0)
    return max(noise, left) if np.isfinite(left) else math.inf
