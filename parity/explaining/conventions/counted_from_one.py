"""A port that counts positions from 1: its scores are right, and round otherwise.

Where the dump lacks turned queries and keys that shows nowhere, but that tables of sines of other
angles are rounded. A legal way with the model's own positions samples such noise poorly in a row or
two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.parity.explaining.searching.hypothesis import Atom, rewritten
from lockstep.parity.explaining.searching.seen import FAINT
from lockstep.parity.graph.graph import Piece
from lockstep.parity.judging.judge import Judgement

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

FROM_ONE = "rope-pos-starts-at-1"
SAID = "positions may be counted from 1: what is made of {taps} rounds as it does then"


def sort_counted(case: Case) -> Iterator[str]:
    """Clear what is wrong by single rows alone, and right once positions count from 1; say so."""
    cleared = [
        (piece, judgement)
        for piece in [*case.wrong]
        if case.judged[piece.target].ratio <= case.trial.limit
        and (judgement := as_counted(case, piece)) is not None
        and judgement.passed
    ]
    for piece, judgement in cleared:
        case.clear(piece, judgement)
    if cleared:
        yield SAID.format(taps=", ".join(case.tap(piece) for piece, _ in cleared))


def as_counted(case: Case, piece: Piece) -> Judgement | None:
    """Judge a piece with positions from 1; None if that moves it, or nothing in it is turned."""
    for one in case.hypotheses:
        here = one.calls & frozenset(piece.calls)
        if one.id == FROM_ONE and here:
            calls = rewritten([Atom(one, here)], case.graph)
            if calls and case.trial.look(piece, calls).effect(0, None) <= FAINT:
                return case.trial.judge(piece, calls)
    return None
