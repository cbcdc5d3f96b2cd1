"""What explanations pieces keep, once something spoke against some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lockstep.parity.explaining.explanation import Explanation

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.graph.graph import Piece

Kept = Callable[["Piece", Explanation], Iterable[Explanation]]


def keep(case: Case, kept: Kept) -> None:
    """Put what is `kept` of each explanation in its place; open the pieces that have none left."""
    left = [
        (piece, [new for one in some for new in kept(piece, one)]) for piece, some in case.explained
    ]
    case.open += [piece for piece, some in left if not some]
    case.explained = [(piece, some) for piece, some in left if some]


def keep_if(case: Case, holds: Callable[[Piece, Explanation], bool]) -> None:
    """Keep the explanations that hold."""
    keep(case, lambda piece, one: [one] if holds(piece, one) else [])
