"""The bugs that move nothing by more than a rounding, decided by the bits that they turn."""

from __future__ import annotations

from collections.abc import Collection

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.deciding.other_readings import readings
from lockstep.parity.explaining.deciding.two_roundings import heard_together, makes_noise
from lockstep.parity.explaining.deciding.verdict import Chosen, Key
from lockstep.parity.explaining.deciding.votes import Ballot, Votes, atoms, outvoted
from lockstep.parity.explaining.deciding.walk import led_to
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, rewritten
from lockstep.parity.graph.graph import Piece

QUIET = 4.0  # noises that a bug may move a value by, to be decided by votes
Quiet = tuple[list[tuple[Chosen, Votes]], list[Piece]]


def subtle(case: Case, chosen: Collection[Chosen]) -> Quiet:
    """Return these bugs with their votes, and the pieces whose bits none of them accounts for.

    Sums in float32 have too many legal orders for bits, and what was rounded when it was stored has
    those of no way of rounding.

    What is quiet may show beside one variant of a louder bug alone, where several explain as much:
    that in which most votes are won is believed.
    """
    if case.trial.dtype.itemsize > 2 or case.trial.also:
        return [], []
    ballot = ballot_of(case, chosen)
    found = quiet_beside(case, ballot)
    rest = [quiet_beside(case, ballot_of(case, one)) for one in readings(case, chosen, ballot)]
    return max([found, *rest], key=lambda one: sum(votes.fault for _, votes in one[0]))


def ballot_of(case: Case, chosen: Collection[Chosen]) -> Ballot:
    """Let the pieces vote, each with what was found in it."""
    known: dict[int, frozenset[Atom]] = {}
    for bug in chosen:
        for piece, atom in zip(bug.pieces, bug.atoms, strict=True):
            known[piece.target] = known.get(piece.target, frozenset()) | {atom}
    judged = [*case.right, *(piece for piece, _ in case.explained)]
    ballot = Ballot(case.trial, judged, known)
    for bug in chosen:
        take_for_granted(ballot, bug, case)
    return ballot


def quiet_beside(case: Case, ballot: Ballot) -> Quiet:
    """Return the quiet bugs that win, beside what each piece is known to have, and the pieces whose
    bits go farther than any that does.
    """
    quiet = [one for one in case.hypotheses if is_quiet(one, case, ballot)]
    led = led_to(ballot, quiet)
    quiet = [one for one in quiet if all(one.id != other.id for other, _, _ in led)]
    won, farther = outvoted(ballot, quiet)
    won += heard_together(
        ballot, [one for one in quiet if all(one.id != bug.id for bug, _, _ in won)]
    )
    found = [
        (Chosen(one, voters, [atom for piece in voters for atom in atoms(one, piece)]), votes)
        for one, votes, voters in (*led, *won)
    ]
    return found, farther


def withdraw_noise(chosen: dict[Key, Chosen], quiet: Collection[tuple[Chosen, Votes]]) -> None:
    """Take out the conventions that only make noise, where quiet bugs account for every bit."""
    voters = [{piece.target for piece in bug.pieces} for bug, _ in quiet]
    heard = set().union(*voters)
    for key, bug in [*chosen.items()]:
        if makes_noise(bug.hypothesis) and all(piece.target in heard for piece in bug.pieces):
            del chosen[key]


def take_for_granted(ballot: Ballot, bug: Chosen, case: Case) -> None:
    """Expect a bug that was seen somewhere where it is too quiet to be seen, if the bits say so."""
    keys = {(bug.hypothesis.id, bug.hypothesis.variant), *bug.ties}
    variants = [
        one for one in case.hypotheses
        if one.id == bug.hypothesis.id and (one.id, one.variant) in keys
    ]  # fmt: skip
    for piece in case.right:
        votes = {one: ballot.vote(one, piece) for one in variants if atoms(one, piece)}
        best = max(votes, key=lambda one: votes[one].fault, default=None)
        if best is not None and votes[best].fault > votes[best].right:
            ballot.take(best, piece)


def is_quiet(hypothesis: Hypothesis, case: Case, ballot: Ballot) -> bool:
    """Say whether a bug changes something, but nowhere by more than the noise, nor by more than
    the turns of a few routers.
    """
    if hypothesis.fault.convention:  # which of them a port follows is asked before, and no matter
        return False
    moved = 0.0
    for pieces in ballot.kinds.values():
        for piece in pieces[:2]:
            calls = rewritten(atoms(hypothesis, piece), case.graph)
            if calls:
                moved = max(moved, case.trial.look(piece, calls).usual_effect())
    return 0.0 < moved <= QUIET
