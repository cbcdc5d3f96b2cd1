"""Two bugs below a rounding whose votes hide each other: neither is heard without the other.

Each turns bits that the other turns too. So beside one alone no convention of rounding gives what
the port has, and none of the two may vote. Both together give nearly every bit. A convention that
makes noise, as keys in half precision do, may have passed the gate in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from lockstep.parity.explaining.deciding.votes import (
    FAITHFUL,
    LIKELY,
    SAMPLED,
    Ballot,
    Votes,
    Winner,
    atoms,
)
from lockstep.parity.explaining.searching.hypothesis import Hypothesis
from lockstep.parity.graph.graph import Piece


def heard_together(ballot: Ballot, hypotheses: Sequence[Hypothesis]) -> list[Winner]:
    """Return two bugs that win their votes, each given the other, or one that does behind noise.

    Asked of the pieces of a kind where what is known gives too few of the port's bits for anything
    to be heard. None are returned if none win.
    """
    for pieces in ballot.kinds.values():
        here = [one for one in hypotheses if atoms(one, pieces[0])]
        if not here or ballot.trial.graph.several(pieces[0]):
            continue
        unheard = [piece for piece in pieces[:SAMPLED] if ballot.faithful(piece) < LIKELY]
        if not unheard:
            continue
        quiet = without_noise(ballot, unheard)
        some = Ballot(ballot.trial, unheard, quiet.named)
        one, *rest = likely(some, here, unheard) or [None]
        pairs = permutations([one, *rest], 2) if rest else [(one, None)]
        found = [winner(quiet, first, second) for first, second in pairs if first]
        if found and all(votes.decided and votes.accounts for _, votes, _ in found):
            return found
    return []


def freed_of_noise(ballot: Ballot, found: Sequence[Winner]) -> list[Piece]:
    """Return the pieces in which a convention that only makes noise stood for what was heard
    together: nearly every bit of them is the port's without it, and with these bugs.
    """
    noisy = [
        piece for piece in every(ballot)
        if any(makes_noise(atom.hypothesis) for atom in ballot.named.get(piece.target, ()))
    ]  # fmt: skip
    if not found or not noisy:
        return []
    quiet = without_noise(ballot, noisy)
    for bug, _, _ in found:
        quiet = given(quiet, bug, every(quiet))
    return [piece for piece in noisy if quiet.faithful(piece) >= FAITHFUL]


def without_noise(ballot: Ballot, unheard: Sequence[Piece]) -> Ballot:
    """Return the ballot without the conventions that only make noise in some pieces, which show
    first how their kind rounds.
    """
    named = dict(ballot.named)
    for piece in unheard:
        named[piece.target] = frozenset(
            atom for atom in named.get(piece.target, ()) if not makes_noise(atom.hypothesis)
        )
    rest = [piece for piece in every(ballot) if piece not in unheard]
    return Ballot(ballot.trial, [*unheard, *rest], named)


def makes_noise(one: Hypothesis) -> bool:
    return one.fault.coarse and one.fault.convention


def every(ballot: Ballot) -> list[Piece]:
    return [piece for some in ballot.kinds.values() for piece in some]


def likely(ballot: Ballot, here: Sequence[Hypothesis], pieces: list[Piece]) -> list[Hypothesis]:
    """Return the one or two that give nearly every bit of some like pieces, or none: that which
    gives most alone, and the best beside it.
    """
    one = clearest(ballot, here, pieces[0])
    if one is None or ballot.convention(pieces[0], one)[1] >= FAITHFUL:
        return [one] if one else []
    beside = given(ballot, one, pieces)
    other = clearest(beside, [other for other in here if other.id != one.id], pieces[0])
    if other is None or beside.convention(pieces[0], other)[1] < FAITHFUL:
        return []
    return [one, other]


def clearest(ballot: Ballot, here: Sequence[Hypothesis], piece: Piece) -> Hypothesis | None:
    """Return the bug that gives most bits of a piece, each as it would round with that bug."""
    likeliest = ballot.likeliest(piece, here)
    return max(likeliest, key=lambda one: ballot.convention(piece, one)[1], default=None)


def winner(ballot: Ballot, one: Hypothesis, other: Hypothesis | None) -> Winner:
    """Let the pieces vote on one bug, with the other taken for granted, as they round with both.

    Those vote, a few of each kind, of which both together give enough bits to be heard.
    """
    beside = given(ballot, other, every(ballot))
    both = given(beside, one, every(ballot))
    total, voters = Votes(), list[Piece]()
    for piece in [piece for some in both.kinds.values() for piece in some[:SAMPLED]]:
        wrong, right = both.calls(piece), beside.calls(piece)
        if not atoms(one, piece) or wrong is None or right is None:
            continue
        if both.faithful(piece) < LIKELY:
            continue
        found = both.count(both.convention(piece, None)[0], piece, wrong, right)
        total += found
        voters += [piece] * (found.fault > found.right)
    return one, total, voters


def given(ballot: Ballot, one: Hypothesis | None, pieces: Sequence[Piece]) -> Ballot:
    """Return the same ballot of some pieces in which a bug is taken for granted."""
    other = Ballot(ballot.trial, pieces, ballot.named)
    for piece in pieces:
        other.take(one, piece)
    return other
