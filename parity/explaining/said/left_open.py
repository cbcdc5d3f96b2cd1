"""What is wrong in a dump and has no name: the operation, the size of its error and its shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from lockstep.parity.explaining.said.diagnosis import Unexplained
from lockstep.parity.explaining.said.error_shape import shape_of_error
from lockstep.parity.explaining.steps.whereabouts import whereabouts
from lockstep.parity.graph.graph import Piece

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

FARTHER = "below a rounding: bits that a known bug would turn are turned, but more than by any"


def left_open(case: Case, farther: Iterable[Piece]) -> list[Unexplained]:
    """Return what no bug explains; of the pieces `farther` only bits say that they are wrong."""
    pieces = sorted(case.open, key=attrgetter("target"))
    return [
        *(unexplained(piece, case) for piece in pieces),
        *(replace(unexplained(piece, case), shape=FARTHER) for piece in farther),
        *contrary(case),
        *case.cached.open,
        *(misread(tap, case) for tap in case.misshapen),
    ]


def unexplained(piece: Piece, case: Case) -> Unexplained:
    judgement = case.judged[piece.target]
    return Unexplained(
        tap=case.tap(piece),
        own_error=judgement.own_error,
        noise=judgement.noise,
        shape=shape_of_error(case.trial, piece) + case.doubt(piece),
        op=case.graph.calls[piece.target].op,
        where=whereabouts([piece], case),
        inside=inside(piece, case),
    )


def inside(piece: Piece, case: Case) -> list[str]:
    """Return the taps of a piece that the dump lacks, in the order in which they are computed."""
    calls = (case.graph.calls[number] for number in piece.calls if number not in case.dumped)
    return [call.taps[0] for call in calls if call.taps]


def contrary(case: Case) -> list[Unexplained]:
    """Report second dumps of a value, such as `logits` next to `lm_head`, that alone are wrong."""
    found = []
    for tap in case.twins:
        number = case.graph.taps[tap]
        if number not in case.judged:
            continue
        piece = case.graph.piece(number, case.dumped)
        other = case.trial.over({number: case.twin(tap)})
        judged = other.judge(piece)
        if not judged.passed:
            said = f"{shape_of_error(other, piece)}; {case.tap(piece)} is the same value"
            name = case.sides.names[tap]
            found.append(Unexplained(name, judged.own_error, judged.noise, said))
    return found


def misread(tap: str, case: Case) -> Unexplained:
    """Report a tensor whose shape or kind alone is wrong."""
    name, found, wanted = case.sides.misfit(tap, case.graph.shapes[case.graph.taps[tap]])
    said = f"shape {list(found)}, but should be {list(wanted)}"
    if case.sides.read(tap, case.graph.shapes[case.graph.taps[tap]]).dtype.kind in "iubc":
        said = "whole or complex numbers, but should be real ones"
    return Unexplained(name, 1.0, 0.0, said)
