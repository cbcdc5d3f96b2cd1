"""Bugs of a float32 port that the gate lets pass: everywhere they take most of the error away.

The gate stands well above what legal sums show, so that it never accuses a right port. A bug may
lead less far than that. But what legal sums leave goes no bug's way: if the port is where a bug
leads, it leaves a small part of the error everywhere, and nothing else does. In half precision a
rounding follows the values, and may go a bug's way: there [bits](subtle.py) decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.deciding.known_elsewhere import counted, distance, explained_by
from lockstep.parity.explaining.deciding.votes import atoms
from lockstep.parity.explaining.searching.hypothesis import Hypothesis, rewritten

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.graph.graph import Piece

FINE = 4  # bytes of a number, at least
LOUD = 1.1  # noises that a piece is off by, for any bug to be looked for: right ones seldom are
QUIET, FAINT = 4.0, 0.5  # noises that a bug leads at most, and where it is asked whether it does
LEFT = 1 / 3  # of the squared error that a bug leaves at most, over all pieces that it is asked of
ROWS, MOST_ROWS = 8, 0.75  # tokens that are asked, and the share of them that it must come nearer
AS_WELL = 1.25  # times what the best leaves, for another bug that fits as well


@dataclass(frozen=True)
class Step:
    """How far a port is from what is right in a piece, and from a bug, token by token, squared."""

    piece: Piece
    before: np.ndarray
    after: np.ndarray


def look_under_the_gate(case: Case) -> None:
    """Explain pieces that passed by a bug, where it takes most of what is left of an error away."""
    if case.trial.dtype.itemsize < FINE or case.trial.also:
        return
    found = {one: (left, pieces) for one, left, pieces in led_to(case)}
    best = min((left for left, _ in found.values()), default=0.0)
    known = counted(case)
    for piece in [*case.right]:
        some = [one for one, (left, at) in found.items() if piece in at and left <= AS_WELL * best]
        if some:
            case.right.remove(piece)
            some = as_good(known, some, piece, case) or some
            case.explained.append((piece, [explained_by(one, piece, case) for one in some]))


def as_good(
    known: Mapping[Hypothesis, int], others: Sequence[Hypothesis], piece: Piece, case: Case
) -> list[Hypothesis]:
    """Return the bugs that leave as little of a piece as others do, of those which explain most
    pieces: how near each is tells little here.
    """

    def left(one: Hypothesis) -> float:
        return distance(frozenset(atoms(one, piece)), piece, case)

    most = AS_WELL * min(map(left, others))
    good = [one for one in known if left(one) <= most]
    return [one for one in good if known[one] == max(known[bug] for bug in good)]


def led_to(case: Case) -> Iterator[tuple[Hypothesis, float, list[Piece]]]:
    """Yield the bugs that leave little, how much that is, and the pieces that say so."""
    loud = {one.target for one in case.right if case.judged[one.target].ratio >= LOUD}
    bugs = (one for one in case.hypotheses if loud and not one.fault.convention)
    for one in bugs:
        steps = steps_of(one, loud, case)
        left = left_by(steps) if steps else None
        if left is not None:
            yield one, left, [step.piece for step in steps]


def steps_of(one: Hypothesis, loud: set[int], case: Case) -> list[Step]:
    """Return where a bug leads a little way; none if it leads far anywhere, or nowhere loud, or may
    be in a piece that nothing explains: that would have what is loud here as well.
    """
    if not any(atoms(one, piece) for piece in case.right if piece.target in loud):
        return []
    if any(atoms(one, piece) for piece in case.open):
        return []
    found = []
    for piece in case.right:
        calls = rewritten(atoms(one, piece), case.graph)
        if not calls:
            continue
        led = case.trial.look(piece, calls)
        if not led.careful or led.effect(0, None) > QUIET:
            return []
        if led.effect(0, None) >= FAINT:
            found.append(Step(piece, case.trial.look(piece, {}).port, led.port))
    return found if any(step.piece.target in loud for step in found) else []


def left_by(steps: Sequence[Step]) -> float | None:
    """Return the share of the squared error that a bug leaves; None if that is not little enough.

    Each piece counts by what it is off, in its own size.
    """
    left = float(np.mean([step.after.sum() / (step.before.sum() or 1.0) for step in steps]))
    nearer = np.concatenate([step.after < step.before for step in steps])
    sure = nearer.size >= ROWS and nearer.mean() >= MOST_ROWS
    return left if sure and left <= LEFT else None
