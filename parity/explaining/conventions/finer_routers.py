"""Routers in finer numbers than their port, whose scores were rounded when they were dumped.

A port in half precision may keep its router in float32. What it chose by is no tensor of the dump
then, but follows from what went into the router: to the last bit of the weights, in every layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.stored import WIDE
from lockstep.parity.graph.graph import Piece
from lockstep.parity.judging.judge import Judgement
from lockstep.parity.naming.grouping import grouped

SAID = "{taps}: computed of finer scores than those that were dumped, as in a router in {wide}"


def sort_finer(case: Case) -> Iterator[str]:
    """Clear what is wrong by its router's scores, and right by those that should be; say so.

    In every layer they must be nearer than the dumped ones, which are right as far as they go.
    """
    wrong = {piece.target for piece in case.wrong}
    routed = [] if case.trial.dtype.itemsize > 2 else [*choices(case)]
    if wrong.isdisjoint(piece.target for piece, _ in routed):
        return
    finer = [(piece, by_finer(case, piece, scores)) for piece, scores in routed]
    if not all(is_nearer(case, piece, judged) for piece, judged in finer):
        return
    cleared = [(piece, judged) for piece, judged in finer if piece.target in wrong]
    for piece, judged in cleared:
        case.clear(piece, judged)
    yield SAID.format(taps=grouped([case.tap(piece) for piece, _ in cleared]), wide=WIDE.name)


def choices(case: Case) -> Iterator[tuple[Piece, int]]:
    """Yield the pieces that a router makes of dumped scores that are right, and those."""
    right = {piece.target for piece in case.right}
    for piece in sorted([*case.right, *case.wrong], key=lambda one: one.target):
        calls = map(case.graph.calls.__getitem__, piece.calls)
        routers = [call.number for call in calls if call.op == "top_k_routing"]
        scores = {one for number in routers for one in case.graph.sources(number)} & right
        if len(routers) == len(scores) == 1:
            yield piece, scores.pop()


def by_finer(case: Case, piece: Piece, scores: int) -> Judgement:
    """Judge a piece by the scores that follow from what the port has before them."""
    finer = case.trial.centre(None).target(scores).astype(WIDE)
    return case.trial.over({scores: finer}).judge(piece)


def is_nearer(case: Case, piece: Piece, judged: Judgement) -> bool:
    return judged.passed and judged.own_error < case.judged[piece.target].own_error
