"""Two bugs below a rounding whose votes hide each other: neither is heard without the other.

Each turns bits that the other turns too. So beside one alone no convention of rounding gives what
the port has, and none of the two may vote. Both together give nearly every bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from lockstep.parity.explaining.deciding.votes import FAITHFUL, LIKELY, Ballot, Winner, atoms
from lockstep.parity.explaining.searching.hypothesis import Hypothesis
from lockstep.parity.graph.graph import Piece


def heard_together(ballot: Ballot, hypotheses: Sequence[Hypothesis]) -> list[Winner]:
    """Return two bugs that win their votes, each given the other; none if no two do.

    Asked where right calls give too few of the port's bits for anything to be heard.
    """
    for pieces in ballot.kinds.values():
        here = [one for one in hypotheses if atoms(one, pieces[0])]
        several = ballot.trial.graph.several(pieces[0])
        if len(here) > 1 and not several and ballot.convention(pieces[0], None)[1] < LIKELY:
            found = [
                winner(ballot, *pair) for pair in permutations(likely(ballot, here, pieces), 2)
            ]
            if found and all(votes.decided and votes.accounts for _, votes, _ in found):
                return found
    return []


def likely(ballot: Ballot, here: Sequence[Hypothesis], pieces: list[Piece]) -> list[Hypothesis]:
    """Return the two that give nearly every bit of some like pieces, or none: that which gives most
    alone, and the best beside it.
    """
    one = max(here, key=lambda one: ballot.convention(pieces[0], one)[1])
    beside = given(ballot, one, pieces)
    rest = [other for other in here if other.id != one.id]
    other = max(rest, key=lambda other: beside.convention(pieces[0], other)[1], default=None)
    if other is None or beside.convention(pieces[0], other)[1] < FAITHFUL:
        return []
    return [one, other]


def winner(ballot: Ballot, one: Hypothesis, other: Hypothesis) -> Winner:
    """Let the pieces vote on one bug, with the other taken for granted."""
    pieces = [piece for some in ballot.kinds.values() for piece in some]
    votes, voters = given(ballot, other, pieces).votes(one)
    return one, votes, voters


def given(ballot: Ballot, one: Hypothesis, pieces: Sequence[Piece]) -> Ballot:
    """Return the same ballot of some pieces in which a bug is taken for granted."""
    other = Ballot(ballot.trial, pieces, ballot.named)
    for piece in pieces:
        other.take(one, piece)
    return other
