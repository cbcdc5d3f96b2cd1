"""The bugs that move nothing by more than a rounding, decided by the bits that they turn."""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.hypothesis import Atom, Hypothesis, rewritten
from lockstep.parity.explaining.verdict import Chosen
from lockstep.parity.explaining.votes import Ballot, Votes, atoms, outvoted

QUIET = 4.0  # noises that a bug may move a value by, to be decided by votes


def subtle(case: Case, chosen: Iterable[Chosen]) -> list[tuple[Chosen, Votes]]:
    """Return these bugs with their votes. Sums in float32 have too many legal orders for bits."""
    if case.trial.dtype.itemsize > 2:
        return []
    known: dict[int, frozenset[Atom]] = {}
    for bug in chosen:
        for piece, atom in zip(bug.pieces, bug.atoms, strict=True):
            known[piece.target] = known.get(piece.target, frozenset()) | {atom}
    judged = [*case.right, *(piece for piece, _ in case.explained)]
    ballot = Ballot(case.trial, judged, known)
    quiet = [one for one in case.hypotheses if is_quiet(one, case, ballot)]
    return [
        (Chosen(one, voters, [atom for piece in voters for atom in atoms(one, piece)]), votes)
        for one, votes, voters in outvoted(ballot, quiet)
    ]


def is_quiet(hypothesis: Hypothesis, case: Case, ballot: Ballot) -> bool:
    """Say whether a bug changes something, but nowhere by more than the noise."""
    if hypothesis.fault.convention:  # which of them a port follows is asked before, and no matter
        return False
    moved = 0.0
    for pieces in ballot.kinds.values():
        for piece in pieces[:2]:
            calls = rewritten(atoms(hypothesis, piece), case.graph)
            if calls:
                moved = max(moved, case.trial.look(piece, calls).effect(0, None))
    return 0.0 < moved <= QUIET
