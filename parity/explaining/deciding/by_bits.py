"""Which of several explanations that all pass the gate has the port's bits.

In half precision two bugs may both leave no more than noise, and be too near each other for all
numbers together to tell them apart. But each rounds to bits of its own, and of these a port has
nearly all or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.parity.explaining.conventions.rounding import (
    agreement,
    bits,
    convention_of,
    telling,
)
from lockstep.parity.explaining.deciding.duel import Explained
from lockstep.parity.explaining.deciding.votes import FAITHFUL, Votes, counted
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.hypothesis import rewritten
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Evaluator
from lockstep.parity.graph.evaluator import Rewritten
from lockstep.parity.graph.graph import Piece


def keep_heard(explained: Sequence[Explained], trial: Trial) -> list[Explained]:
    """Return what is left of each piece's explanations when those that are outvoted are taken out.

    Sums in float32 have too many legal orders for bits, and what was rounded when it was stored has
    those of no way of rounding.
    """
    if trial.dtype.itemsize > 2 or trial.also:
        return [*explained]
    return [(piece, heard(piece, some, trial)) for piece, some in explained]


def heard(piece: Piece, some: Sequence[Explanation], trial: Trial) -> list[Explanation]:
    """Return the explanations that one with nearly all bits does not outvote; all if none has.

    One that has nearly all too, in the convention of rounding that is best for it, is kept: nobody
    knows which of the two conventions the port follows.
    """
    if len(some) < 2:
        return [*some]
    ordered = sorted(some, key=lambda one: one.judgement.ratio)
    calls = [rewritten(one.atoms, trial.graph) or {} for one in ordered]
    best, run, share = most_faithful(piece, calls, trial)
    if share < FAITHFUL:
        return [*some]
    pairs = zip(ordered, calls, strict=True)
    lost = [
        one for one, other in pairs
        if votes(piece, run, calls[best], other, trial).decided
        and convention_of(trial, [(piece, other)])[1] < FAITHFUL
    ]  # fmt: skip
    return [one for one in some if all(one is not other for other in lost)]


def most_faithful(
    piece: Piece, calls: Sequence[Rewritten], trial: Trial
) -> tuple[int, Evaluator, float]:
    """Return which of some rewrites gives most of the port's bits, in which convention of rounding,
    and how many. The first is the nearest: how the port rounds is found out with it, and again with
    the one that then gives most.
    """
    run, share = convention_of(trial, [(piece, calls[0])])
    shares = [agreement(run, trial, [(piece, one)]) for one in calls]
    best = max(range(len(calls)), key=shares.__getitem__)
    if best:
        run, share = convention_of(trial, [(piece, calls[best])])
    return best, run, share


def votes(piece: Piece, run: Evaluator, best: Rewritten, other: Rewritten, trial: Trial) -> Votes:
    """Count whose bits the port's are, where two explanations give different ones.

    What rounding may send to another expert has no vote.
    """
    port, shown = trial.port(piece.target), telling(trial, piece, best)
    one, two = (bits(run, piece, calls, trial.dtype) for calls in (best, other))
    return counted(one != two, port == one, port == two, shown)
