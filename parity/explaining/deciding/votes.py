"""Decide what moves a value by less than a rounding: by the bits in which right and wrong differ.

A gate cannot see such a bug, and a fit of its direction is fooled, since a rounding error is no
noise but a function of the value. But where right and wrong, both computed to the bit in the port's
own convention of rounding, give different bits, the port's bits say which of them it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lockstep.parity.explaining.conventions.rounding import (
    agreement,
    bits,
    convention_of,
    telling,
)
from lockstep.parity.explaining.deciding.own_tokens import own_tokens
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, rewritten
from lockstep.parity.explaining.searching.look import FAR
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Call, Evaluator
from lockstep.parity.graph.evaluator import Rewritten
from lockstep.parity.graph.graph import Piece
from lockstep.parity.graph.refusals import if_computable

ENOUGH = 8  # votes that must be cast
ROWS = 4  # in which a bug must have won
MAJORITY = 5.0  # votes for a bug over those against it
FAITHFUL = 0.98  # of the port's bits that its convention must give where nothing is in question
LIKELY, CLOSED = 0.9, 0.4  # or of a bug's bits, if so small a share of what was wrong is left
SCATTERED, HALVED = 0.5, 0.5  # of several layers: where right bits are few, and that share
SAMPLED = 6  # pieces of one kind that vote
NEAREST = 4  # bugs whose own rounding is found out, which takes long
Kind = tuple[str, ...]


@dataclass(frozen=True)
class Votes:
    """How many numbers follow the bug, how many the right computation, and how many neither.

    `rows` are those in which the bug has most votes, `against` those where it has fewest: one
    rounding may turn many numbers of a row. `turned` are all numbers that the bug turns to the
    port's, `left` those that the port has otherwise and that the bug moves by no bit.
    """

    fault: int = 0
    right: int = 0
    neither: int = 0
    rows: int = 0
    against: int = 0
    turned: int = 0
    left: int = 0

    def __add__(self, other: Votes) -> Votes:
        return Votes(
            self.fault + other.fault, self.right + other.right, self.neither + other.neither,
            self.rows + other.rows, self.against + other.against,
            self.turned + other.turned, self.left + other.left,
        )  # fmt: skip

    @property
    def share(self) -> float:
        return self.fault / max(self.fault + self.right, 1)

    @property
    def decided(self) -> bool:
        """Say whether the bug has won."""
        cast = self.fault + self.right
        clear = self.fault >= MAJORITY * self.right and 2 * self.neither <= cast
        many = self.rows >= ROWS and self.rows >= MAJORITY * self.against
        return cast >= ENOUGH and clear and many

    @property
    def accounts(self) -> bool:
        """Say whether the bug turns most of the bits that the port has otherwise.

        What rounding turns beside a bug, it turns to either side: as many bits that the bug moved
        go back as others go on. So `left` has the law of `right`, of which a winner has few. A bug
        that stands for a larger one goes the same way, but not as far: it leaves most.
        """
        return self.left <= self.turned


Winner = tuple[Hypothesis, Votes, list[Piece]]


class Ballot:
    """The votes of one dump's pieces. `named` holds what is known to be wrong in each of them."""

    def __init__(self, trial: Trial, pieces: Iterable[Piece], named: Mapping[int, frozenset[Atom]]):
        self.trial = trial
        self.named = dict(named)
        self.kinds: dict[Kind, list[Piece]] = {}
        for piece in pieces:
            self.kinds.setdefault(self.trial.graph.kind(piece), []).append(piece)
        self.conventions: dict[tuple[Kind, Hypothesis | None], tuple[Evaluator, float]] = {}
        self.shares: dict[tuple[Kind, Hypothesis], float] = {}
        self.asked: Sequence[Hypothesis] = ()  # those that vote now
        self.known_left: dict[object, float] = {}

    def calls(self, piece: Piece, more: Iterable[Atom] = ()) -> dict[int, Call] | None:
        return rewritten({*self.named.get(piece.target, ()), *more}, self.trial.graph)

    def convention(self, piece: Piece, more: Hypothesis | None) -> tuple[Evaluator, float]:
        """Return the convention that pieces of a kind follow, rightly computed or with a bug.

        A layer rounds so often that one convention shows little until all others are found, so
        that of the right computation is tried with the bug as well.
        """
        key = self.trial.graph.kind(piece), more
        if key not in self.conventions:
            self.conventions[key] = convention_of(self.trial, self.some_with(piece, more))
            if more is not None:
                other = self.convention(piece, None)[0], self.share_as_right(piece, more)
                self.conventions[key] = max(self.conventions[key], other, key=lambda one: one[1])
        return self.conventions[key]

    def some_with(self, piece: Piece, more: Hypothesis | None) -> list[tuple[Piece, Rewritten]]:
        """Return two pieces of a kind, with a bug's calls."""
        some = self.kinds[self.trial.graph.kind(piece)][:2]
        return [(one, self.calls(one, atoms(more, one)) or {}) for one in some]

    def share_as_right(self, piece: Piece, more: Hypothesis) -> float:
        """Return the share of bits that a bug gives where a kind rounds as if it had none."""
        key = self.trial.graph.kind(piece), more
        if key not in self.shares:
            run, _ = self.convention(piece, None)
            self.shares[key] = agreement(run, self.trial, self.some_with(piece, more))
        return self.shares[key]

    def likeliest(self, piece: Piece, some: Iterable[Hypothesis]) -> list[Hypothesis]:
        """Return the few bugs that give most bits of a piece, before their own rounding is found
        out, which takes long.
        """
        shares = {one: self.share_as_right(piece, one) for one in some if atoms(one, piece)}
        least = min(sorted(shares.values(), reverse=True)[:NEAREST], default=0.0)
        return [one for one, share in shares.items() if share >= least]

    def faithful(self, piece: Piece) -> float:
        """Return the share of a piece's bits that what is known gives, as its kind rounds."""
        run, _ = self.convention(piece, None)
        return agreement(run, self.trial, [(piece, self.calls(piece) or {})])

    def take(self, hypothesis: Hypothesis | None, piece: Piece) -> None:
        """Take a bug for granted in a piece; how pieces of its kind round is found out anew."""
        known = self.named.get(piece.target, frozenset())
        self.named[piece.target] = known | {*atoms(hypothesis, piece)}
        kind = self.trial.graph.kind(piece)
        self.conventions = {key: one for key, one in self.conventions.items() if key[0] != kind}
        self.shares = {key: one for key, one in self.shares.items() if key[0] != kind}

    def votes(self, hypothesis: Hypothesis) -> tuple[Votes, list[Piece]]:
        """Let every piece vote in which a hypothesis acts; return the pieces that did."""
        total, voters = Votes(), []
        for pieces in self.kinds.values():
            for piece in pieces[:SAMPLED]:
                one = self.vote(hypothesis, piece)
                total += one
                voters += [piece] * (one.fault > one.right)
        return total, voters

    def vote(self, hypothesis: Hypothesis, piece: Piece) -> Votes:
        """Count whose bits the port's are, if it is known how the port rounds.

        A bug that turns nearly every bit hides that, so its own bits may show it too. In several
        layers a single rounding turns the bits of all later tokens: there it shows only where right
        ones give few of all bits, and with the bug half of the others are the port's.
        """
        here = atoms(hypothesis, piece)
        wrong, right = self.calls(piece, here), self.calls(piece)
        if not here or wrong is None or right is None:
            return Votes()
        run, faithful = self.convention(piece, None)
        enough = min(FAITHFUL, max(LIKELY, 1 - CLOSED * (1 - faithful)))
        if self.trial.graph.several(piece):
            if faithful < SCATTERED and self.is_near(piece, hypothesis):
                enough = 1 - HALVED * (1 - faithful)
                run, faithful = self.convention(piece, hypothesis)
        elif faithful < FAITHFUL and hypothesis in self.likeliest(piece, (*self.asked, hypothesis)):
            run, faithful = self.convention(piece, hypothesis)
        return self.count(run, piece, wrong, right) if faithful >= enough else Votes()

    def is_near(self, piece: Piece, hypothesis: Hypothesis) -> bool:
        """Say whether the port is nearer to a bug than to right arithmetic, and to few others of
        those that are asked nearer still.
        """
        left = self.left(piece, hypothesis)
        others = (self.left(piece, one) for one in self.asked)
        return left < self.left(piece, None) and sum(one < left for one in others) < NEAREST

    def left(self, piece: Piece, more: Hypothesis | None) -> float:
        """Return how far the port is from right arithmetic, or from a bug."""
        key = piece.target, self.named.get(piece.target), more
        if key not in self.known_left:
            calls = self.calls(piece, atoms(more, piece))
            left = FAR if calls is None else self.trial.look(piece, calls).raw(0, None)
            self.known_left[key] = left
        return self.known_left[key]

    def between(self, one: Hypothesis, other: Hypothesis, piece: Piece) -> Votes:
        """Count whose bits the port's are, where two bugs give different ones."""
        calls = [self.calls(piece, atoms(some, piece)) for some in (one, other)]
        if calls[0] is None or calls[1] is None:
            return Votes()
        known = (self.convention(piece, more) for more in (None, one, other))
        run, _ = max(known, key=lambda found: found[1])
        return self.count(run, piece, calls[0], calls[1])

    def count(self, run: Evaluator, piece: Piece, wrong: Rewritten, right: Rewritten) -> Votes:
        """Count whose bits the port's are, where the two differ, in the tokens that show it.

        A token that only sees another one differ is no vote for the bug, but it is one against it.
        """
        dtype, port = self.trial.dtype, self.trial.port(piece.target)
        with if_computable():
            one, other = (bits(run, piece, calls, dtype) for calls in (wrong, right))
            if one.shape != other.shape:
                return Votes()
            shown = telling(self.trial, piece, right)
            apart, bits_of = one != other, (port == one, port == other)
            found = counted(apart, *bits_of, shown)
            own = own_tokens(run, piece.target, wrong, right) if found.fault > found.right else None
            if own is None:
                return found
            sure = counted(apart & own, *bits_of, shown)
            return replace(found, fault=sure.fault, rows=sure.rows)
        return Votes()


def counted(
    apart: np.ndarray, one: np.ndarray, other: np.ndarray, shown: np.ndarray | bool = True
) -> Votes:
    """Count the numbers, and the rows, in which a port is as one of two that part, or the other.

    What is not `shown` has no vote.
    """
    apart, one = apart & shown, one | np.logical_not(shown)
    fault, honest = (per_row(apart & same) for same in (one, other))
    neither = int(np.count_nonzero(apart) - fault.sum() - honest.sum())
    rows = int(np.sum(fault > honest)), int(np.sum(fault < honest))
    turned, left = int(fault.sum()), int(np.count_nonzero(~(apart | one)))
    return Votes(turned, int(honest.sum()), neither, *rows, turned, left)


def per_row(votes: np.ndarray) -> np.ndarray:
    return votes.reshape(-1, votes.shape[-1]).sum(axis=-1)


def atoms(hypothesis: Hypothesis | None, piece: Piece) -> list[Atom]:
    """Return what a hypothesis changes in a piece, as one atom; none if nothing."""
    here = hypothesis.calls & frozenset(piece.calls) if hypothesis else None
    return [Atom(hypothesis, here)] if hypothesis and here else []


def outvoted(ballot: Ballot, hypotheses: Sequence[Hypothesis]) -> tuple[list[Winner], list[Piece]]:
    """Return the bugs that win their vote, the clearest first, each given those before it, and the
    pieces whose bits go the way of some bug, but farther than any.

    A relative of a bug wins against the right computation too, since it turns many of the same
    bits; so the others vote again once the clearest is taken for granted. So do those that lost:
    where a bug turns nearly all bits, no other one is heard beside it. One that does not account
    for what is there may do so beside another; if none does, something else is there.
    """
    won: list[Winner] = []
    waiting = list(hypotheses)
    while True:
        ballot.asked = waiting
        found = [(one, *ballot.votes(one)) for one in waiting]
        found = [entry for entry in found if entry[1].decided]
        sure = [entry for entry in found if entry[1].accounts]
        if not sure:
            return won, max(found, key=lambda entry: entry[1].fault)[2] if found else []
        best = champion(ballot, sure)
        won.append(best)
        for piece in best[2]:
            ballot.take(best[0], piece)
        waiting = [one for one in waiting if one is not best[0]]


def champion(ballot: Ballot, found: Sequence[Winner]) -> Winner:
    """Return the clearest winner that no other one beats where both would turn bits."""
    ordered = sorted(found, key=lambda entry: (entry[1].share, entry[1].fault), reverse=True)
    best = ordered[0]
    for other in ordered[1:]:
        here = {piece.target: piece for piece in (*best[2], *other[2])}.values()
        votes = sum((ballot.between(other[0], best[0], piece) for piece in here), Votes())
        if votes.fault > 2 * votes.right:
            best = other
    return best
