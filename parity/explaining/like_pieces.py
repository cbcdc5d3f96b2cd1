"""Whether most pieces like one have no explanation: then what is read in it alone is doubted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.graph.graph import Piece


def mostly_open(case: Case) -> Callable[[Piece], bool]:
    """Return what says of a piece whether more like it are open now than right or explained."""
    kind = case.graph.kind
    known = [*case.right, *(piece for piece, _ in case.explained)]
    unknown, told = (Counter(map(kind, some)) for some in (case.open, known))
    return lambda piece: unknown[kind(piece)] > told[kind(piece)]
