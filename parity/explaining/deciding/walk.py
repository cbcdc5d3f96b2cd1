"""Bugs that the gate lets pass, but that all numbers together show: the port is where they lead.

A bug moves the right value by a noise or less. If the port's error, along the way that it leads, is
all of that way and no part of it, in each kind of piece, then the port has the bug. No legal way of
rounding may lead there too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.parity.explaining.deciding.duel import FAR, Way, way
from lockstep.parity.explaining.deciding.votes import Ballot, Votes, atoms
from lockstep.parity.explaining.searching.hypothesis import Hypothesis
from lockstep.parity.graph import Evaluator
from lockstep.parity.graph.graph import Piece
from lockstep.parity.graph.refusals import if_computable

LEAST = 0.1  # noises that a bug must move the numbers by
FAR_ENOUGH = 200.0  # the same squared, over all numbers: sure with bits; a FAR way alone is
NEAR, NEAR_EACH = 0.2, 0.4  # how near its end the port must be, in all pieces and in each kind
ASTRAY, ASTRAY_FAR = 0.3, 0.5  # of the way, that a legal rounding may lead: of a far one, half
CLEAR, FAINT = 1.2, 4.0  # bits that turn to it for each that stays: after a far way, and another
FIRST, MORE = 2, 6  # pieces of a kind that are looked at, and if they agree


def led_to(
    ballot: Ballot, hypotheses: Sequence[Hypothesis]
) -> list[tuple[Hypothesis, Votes, list[Piece]]]:
    """Return the bugs that the port is led to, the one that brings it nearest first, each given
    those before it, which `ballot` takes for granted from then on.
    """
    found: list[tuple[Hypothesis, Votes, list[Piece]]] = []
    waiting = list(hypotheses)
    while waiting:
        ways = {one: at_end(ballot, one, FIRST, FAR_ENOUGH / MORE) for one in waiting}
        waiting = [one for one in waiting if ways[one] is not None]
        firm = [(one, led) for one in waiting if (led := confirmed(ballot, one)) is not None]
        if not firm:
            break
        best, (_, votes, pieces) = max(firm, key=lambda entry: entry[1][0])
        found.append((best, votes, pieces))
        for piece in pieces:
            ballot.take(best, piece)
        waiting = [one for one in waiting if one.id != best.id]
    return found


def confirmed(ballot: Ballot, one: Hypothesis) -> tuple[float, Votes, list[Piece]] | None:
    """Ask more pieces, the legal ways of rounding, and the bits."""
    led = at_end(ballot, one, MORE, FAR_ENOUGH)
    if led is None:
        return None
    total, pieces = led
    for run in ballot.trial.ways(None):
        astray = sum((step(ballot, one, piece, run) for piece in pieces), Way())
        most = ASTRAY_FAR if total.size >= FAR else ASTRAY
        if astray.size and abs(astray.along / astray.size) > most:
            return None
    votes = sum((bits_of(ballot, one, piece) for piece in pieces), Votes())
    least = CLEAR if total.size >= FAR else FAINT
    return (total.nearer, votes, pieces) if votes.fault > least * votes.right else None


def bits_of(ballot: Ballot, one: Hypothesis, piece: Piece) -> Votes:
    wrong, right = ballot.calls(piece, atoms(one, piece)), ballot.calls(piece)
    if wrong is None or right is None:
        return Votes()
    run = max((ballot.convention(piece, more) for more in (None, one)), key=lambda found: found[1])
    return ballot.count(run[0], piece, wrong, right)


def at_end(
    ballot: Ballot, one: Hypothesis, most: int, least: float
) -> tuple[Way, list[Piece]] | None:
    """Return the way that a bug leads, and its pieces, if the port is at its end in every kind.

    `most` pieces of a kind are asked, and the way is `least` long, squared.
    """
    total, pieces = Way(), []
    for some in ballot.kinds.values():
        here = [piece for piece in some[:most] if atoms(one, piece)]
        part = sum((step(ballot, one, piece) for piece in here), Way())
        if part.size >= FAR and abs(part.along / part.size - 1) > NEAR_EACH:
            return None
        total += part
        pieces += here
    if total.size < max(least, LEAST**2 * total.count):
        return None
    near = NEAR if least >= FAR_ENOUGH else NEAR_EACH
    return (total, pieces) if abs(total.along / total.size - 1) <= near else None


def step(ballot: Ballot, one: Hypothesis, piece: Piece, run: Evaluator | None = None) -> Way:
    """Return how far a bug leads in a piece, and how far along the port is, or a way of rounding.

    Where the bug cannot be, it leads nowhere.
    """
    trial = ballot.trial
    wrong, right = ballot.calls(piece, atoms(one, piece)), ballot.calls(piece)
    if wrong is None or right is None:
        return Way()
    with if_computable(), np.errstate(all="ignore"):  # a broken port may hold anything
        values = [trial.centre(None).target(piece.target, calls) for calls in (right, wrong)]
        port = run.target(piece.target, right) if run else trial.port(piece.target)
        trial.count += 2
        if values[0].shape == values[1].shape == port.shape:
            there = [trial.tokens(value, piece.target) for value in (port, *values)]
            return way(there[0], there[1], there[2], trial.relative_noise(piece, None))
    return Way()
