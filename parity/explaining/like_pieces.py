"""Whether most pieces like one have no explanation: then what is read in it alone is doubted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.graph.graph import Piece


def more_open(case: Case) -> Callable[[Piece], int]:
    """Return what says of a piece how many more like it are open now than right or explained."""
    kind = case.graph.kind
    known = [*case.right, *(piece for piece, _ in case.explained)]
    unknown, told = (Counter(map(kind, some)) for some in (case.open, known))
    return lambda piece: unknown[kind(piece)] - told[kind(piece)]


def mostly_open(case: Case) -> Callable[[Piece], bool]:
    more = more_open(case)
    return lambda piece: more(piece) > 0
