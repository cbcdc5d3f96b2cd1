"""A piece that alone has an explanation, of like ones: a poor one is no better than theirs.

Where the piece is barely wrong, what the others have may be small there. Where several bugs are
needed, as many others may go as near: if they were in the others too, these would be explained.
In half precision several small bugs may stand for others. But what takes nearly all of the error of
another one away as well is there, whatever is left of it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from lockstep.parity.explaining.deciding.kept import keep_if
from lockstep.parity.explaining.like_pieces import more_open
from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import Atom, rewritten
from lockstep.parity.explaining.searching.look import FAR
from lockstep.parity.explaining.searching.one_more import NEAR
from lockstep.parity.judging.judge import LIMITS

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.explaining.explanation import Explanation
    from lockstep.parity.graph.graph import Piece

HALF = 2  # bytes of a dtype of few digits
BARELY = 4.0  # noises that a piece is off by
SEVERAL = 4  # bugs that are needed
NEEDED = 4.0  # times what some bugs leave, that is left without one of them
STRAINED = 0.9  # of the noises that may be left in half precision: the right bugs leave fewer


def withdraw_poor(case: Case) -> None:
    """Give up what poorly explains a piece, where most like ones have nothing; where half of
    them have, what is vague.
    """
    more = more_open(case)

    def stands(piece: Piece, one: Explanation) -> bool:
        poor = case.judged[piece.target].ratio <= BARELY or len(one.atoms) >= SEVERAL
        if more(piece) < 0:
            return True
        doubtful = (poor and more(piece) > 0) or is_vague(piece, one, case)
        return not doubtful or is_borne_out(piece, one, case)

    keep_if(case, stands)


def is_vague(piece: Piece, one: Explanation, case: Case) -> bool:
    """Say whether several bugs leave nearly all that is allowed, or none of them stands out."""
    if case.trial.dtype.itemsize > HALF or len(one.atoms) == 1:
        return False
    rows = prod(case.graph.shapes[piece.target][:-1])
    limit = LIMITS[case.trial.dtype.name].over(rows)
    return one.judgement.ratio > STRAINED * limit or not any(
        stands_out(atom, piece, one, case) for atom in one.atoms
    )


def stands_out(atom: Atom, piece: Piece, one: Explanation, case: Case) -> bool:
    """Say whether much is left without a bug: else as small a one may be in its place."""
    rest = rewritten(one.atoms - {atom}, case.graph)
    return rest is None or not case.trial.judge(piece, rest).ratio <= BARELY


def is_borne_out(piece: Piece, one: Explanation, case: Case) -> bool:
    """Say whether an open like piece is off by nearly nothing with the same bugs."""
    bugs, kind = {atom.hypothesis for atom in one.atoms}, case.graph.kind
    return any(
        {atom.hypothesis for atom in atoms} == bugs and takes_nearly_all(atoms, other, case)
        for other in case.open
        if kind(other) == kind(piece)
        for atoms in case.taught(other)
    )


def takes_nearly_all(atoms: Atoms, piece: Piece, case: Case) -> bool:
    """Say whether some bugs leave nearly nothing of a piece's error, and each of them is needed."""

    def left(some: Atoms) -> float:
        calls = rewritten(some, case.graph)
        return FAR if calls is None else case.trial.look(piece, calls).raw(0, None)

    found = left(atoms)
    needed = all(left(atoms - {atom}) >= NEEDED * found for atom in atoms)
    return needed and found <= NEAR * left(frozenset())
