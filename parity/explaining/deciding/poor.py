"""A piece that alone has an explanation, of like ones: a poor one is no better than theirs.

Where the piece is barely wrong, what the others have may be small there. Where several bugs are
needed, as many others may go as near: if they were in the others too, these would be explained.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lockstep.parity.explaining.deciding.kept import keep_if

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.explaining.explanation import Explanation
    from lockstep.parity.graph.graph import Piece

BARELY = 4.0  # noises that a piece is off by
SEVERAL = 4  # bugs that are needed


def withdraw_poor(case: Case) -> None:
    """Give up what poorly explains a piece, where most like ones have nothing."""
    kind = case.graph.kind
    known = [*case.right, *(piece for piece, _ in case.explained)]
    unknown, told = (Counter(map(kind, some)) for some in (case.open, known))

    def stands(piece: Piece, one: Explanation) -> bool:
        poor = case.judged[piece.target].ratio <= BARELY or len(one.atoms) >= SEVERAL
        return not poor or unknown[kind(piece)] <= told[kind(piece)]

    keep_if(case, stands)
