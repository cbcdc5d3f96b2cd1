"""What passes the gate, though the port is not where it leads.

A bug that hardly shows may pass in the place of another that goes its way, half as far or twice as
far. What is left then is in line with what the bug changes; what rounding leaves is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.deciding.duel import Way, way
from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import rewritten
from lockstep.parity.explaining.searching.search import Explanation
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph.graph import Piece

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

OFF = 0.3  # of the way that a bug leads, that the port may be off its end


def keep_ended(case: Case) -> None:
    """Take out what explains a piece whose port is elsewhere on its way; open what has nothing."""
    kept = [(piece, [one for one in some if ended(piece, one, case.trial)])
            for piece, some in case.explained]  # fmt: skip
    case.open += [piece for piece, some in kept if not some]
    case.explained = [(piece, some) for piece, some in kept if some]


def ended(piece: Piece, one: Explanation, trial: Trial) -> bool:
    """Say whether the port is at the end of the way of each bug, as far as that can be told.

    Behind a router, where tokens prove nothing, and where a coarse grid turns ties, it cannot.
    """
    turned = trial.routers_of(piece) or piece.target in trial.unseen
    if turned or any(atom.hypothesis.fault.coarse for atom in one.atoms):
        return True
    found = (led(piece, one.atoms - {atom}, one.atoms, trial) for atom in one.atoms)
    return all(not part.long or abs(part.along / part.size - 1) <= OFF for part in found)


def led(piece: Piece, rest: Atoms, whole: Atoms, trial: Trial) -> Way:
    """Return the way from what some bugs make of a piece to what more of them do."""
    calls = [rewritten(atoms, trial.graph) for atoms in (rest, whole)]
    trial.count += 2
    with np.errstate(all="ignore"):  # a broken port may hold anything
        try:
            values = [trial.centre(None).target(piece.target, some) for some in calls]
        except ValueError:  # shapes that this model does not have
            return Way()
    port = trial.port(piece.target)
    if calls[0] is None or any(value.shape != port.shape for value in values):
        return Way()
    there = [trial.tokens(value, piece.target) for value in (port, *values)]
    return way(there[0], there[1], there[2], trial.relative_noise(piece, None))
