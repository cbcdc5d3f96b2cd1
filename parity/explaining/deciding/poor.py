"""A piece that alone has an explanation, of like ones: a poor one is no better than theirs.

Where the piece is barely wrong, what the others have may be small there. Where several bugs are
needed, as many others may go as near: if they were in the others too, these would be explained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.parity.explaining.deciding.kept import keep_if
from lockstep.parity.explaining.like_pieces import mostly_open

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.explaining.explanation import Explanation
    from lockstep.parity.graph.graph import Piece

BARELY = 4.0  # noises that a piece is off by
SEVERAL = 4  # bugs that are needed


def withdraw_poor(case: Case) -> None:
    """Give up what poorly explains a piece, where most like ones have nothing."""
    alone = mostly_open(case)

    def stands(piece: Piece, one: Explanation) -> bool:
        poor = case.judged[piece.target].ratio <= BARELY or len(one.atoms) >= SEVERAL
        return not (poor and alone(piece))

    keep_if(case, stands)
