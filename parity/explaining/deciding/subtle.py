"""The bugs that move nothing by more than a rounding, decided by the bits that they turn."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.deciding.other_readings import readings
from lockstep.parity.explaining.deciding.two_roundings import (
    freed_of_noise,
    heard_together,
    makes_noise,
)
from lockstep.parity.explaining.deciding.verdict import Chosen, Key
from lockstep.parity.explaining.deciding.votes import Ballot, Votes, atoms, outvoted
from lockstep.parity.explaining.deciding.walk import led_to
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, rewritten
from lockstep.parity.explaining.searching.rounded_anyway import but_rounded_anyway
from lockstep.parity.graph.graph import Piece

QUIET = 4.0  # noises that a bug may move a value by, to be decided by votes


class Quiet(NamedTuple):
    """What bits decided: the bugs; the pieces whose bits go farther than any bug; and those whose
    bits are the bugs', and no longer a convention's that only makes noise.
    """

    bugs: list[tuple[Chosen, Votes]]
    farther: list[Piece]
    freed: list[Piece]


def subtle(case: Case, chosen: Collection[Chosen]) -> Quiet:
    """Return what the bits of all pieces decide.

    Sums in float32 have too many legal orders for bits, and what was rounded when it was stored has
    those of no way of rounding.

    What is quiet may show beside one variant of a louder bug alone, where several explain as much:
    that in which most votes are won is believed.
    """
    if case.trial.dtype.itemsize > 2 or case.trial.also:
        return Quiet([], [], [])
    ballot = ballot_of(case, chosen)
    found = quiet_beside(case, ballot)
    rest = [quiet_beside(case, ballot_of(case, one)) for one in readings(case, chosen, ballot)]
    return max([found, *rest], key=lambda one: sum(votes.fault for _, votes in one.bugs))


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
    """Let the quiet bugs vote, beside what each piece is known to have."""
    quiet = [one for one in case.hypotheses if is_quiet(one, case, ballot)]
    led = led_to(ballot, quiet)
    quiet = [one for one in quiet if all(one.id != other.id for other, _, _ in led)]
    won, farther = outvoted(ballot, quiet)
    rest = [one for one in quiet if all(one.id != bug.id for bug, _, _ in won)]
    together = heard_together(ballot, rest)
    found = [
        (Chosen(one, voters, [atom for piece in voters for atom in atoms(one, piece)]), votes)
        for one, votes, voters in (*led, *won, *together)
    ]
    return Quiet(found, farther, freed_of_noise(ballot, together))


def withdraw_noise(chosen: dict[Key, Chosen], freed: Collection[Piece]) -> None:
    """Take out the conventions that only make noise, where quiet bugs give the bits without any."""
    free = {piece.target for piece in freed}
    for key, bug in [*chosen.items()]:
        if makes_noise(bug.hypothesis) and all(piece.target in free for piece in bug.pieces):
            del chosen[key]


def take_for_granted(ballot: Ballot, bug: Chosen, case: Case) -> None:
    """Expect a bug that was seen somewhere where it is too quiet to be seen, if the bits say so."""
    keys = {(bug.hypothesis.id, bug.hypothesis.variant), *bug.ties}
    variants = [
        one for one in case.hypotheses
        if one.id == bug.hypothesis.id and (one.id, one.variant) in keys
    ]  # fmt: skip
    beside = [piece for piece, _ in case.explained if is_faint(variants, piece, ballot)]
    for piece in (*case.right, *beside):
        votes = {one: ballot.vote(one, piece) for one in variants if atoms(one, piece)}
        best = max(votes, key=lambda one: votes[one].fault, default=None)
        if best is not None and votes[best].fault > votes[best].right:
            ballot.take(best, piece)


def is_faint(variants: Collection[Hypothesis], piece: Piece, ballot: Ballot) -> bool:
    """Say whether a bug that is not known in a piece would move it, by no more than the noise."""
    known = {atom.hypothesis.id for atom in ballot.named.get(piece.target, ())}
    trial = ballot.trial
    every = (rewritten(atoms(one, piece), trial.graph) for one in variants if one.id not in known)
    moved = [trial.look(piece, calls).usual_effect() for calls in every if calls]
    return 0.0 < max(moved, default=0.0) <= QUIET


def is_quiet(hypothesis: Hypothesis, case: Case, ballot: Ballot) -> bool:
    """Say whether a bug changes something, but nowhere by more than the noise, nor by more than
    the turns of a few routers. What some engines round anyway is none.
    """
    if hypothesis.fault.convention:  # which of them a port follows is asked before, and no matter
        return False
    moved = 0.0
    for piece in (piece for pieces in ballot.kinds.values() for piece in pieces[:2]):
        here = atoms(hypothesis, piece)
        calls = rewritten(here, case.graph)
        if calls:
            moved = max(moved, case.trial.look(piece, calls).usual_effect())
        if calls and len([*but_rounded_anyway(here, piece, case.trial)]) < len(here):
            return False
    return 0.0 < moved <= QUIET
