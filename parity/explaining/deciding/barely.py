"""A piece that is barely wrong among like ones that nothing explains: what they have may be small
there, and what explains so little by itself says nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lockstep.parity.explaining.deciding.kept import keep_if

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.graph.graph import Piece

BARELY = 4.0  # noises that a piece is off by


def withdraw_barely(case: Case) -> None:
    """Give up what explains pieces that are barely wrong, where most like ones have nothing."""
    kind = case.graph.kind
    known = [*case.right, *(piece for piece, _ in case.explained)]
    unknown, told = (Counter(map(kind, some)) for some in (case.open, known))

    def lost(piece: Piece) -> bool:
        like = kind(piece)
        return case.judged[piece.target].ratio <= BARELY and unknown[like] > told[like]

    keep_if(case, lambda piece, one: not lost(piece))
