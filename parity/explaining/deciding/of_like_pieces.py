"""What explains a like piece in full goes before a smaller set that leaves more.

The smallest set of a piece may have one bug that stands for two others, where these hardly show: a
prompt that was seen before, for no mask and another activation. Like pieces say which two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from lockstep.parity.explaining.deciding.known_elsewhere import distance
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.earned import LESS
from lockstep.parity.explaining.searching.exchange import acting, as_well, equals, in_turn, of_like
from lockstep.parity.explaining.searching.lone import Bugs

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.graph.graph import Piece

ASKED = 12  # sets of like pieces


def prefer_like_pieces(case: Case) -> None:
    """Put what explains like pieces in the place of what leaves clearly more than that does."""
    pairs = equals(case)
    for piece, some in case.explained:
        theirs = in_turn(of_like(piece, case.explained, case.graph))
        if sets := [*islice(larger(some, theirs), ASKED)]:
            found = nearer(piece, some, sets, case)
            some[:] = [*found, *as_well(case.search_over(piece), found, pairs)] or some


def nearer(
    piece: Piece, had: Collection[Explanation], sets: Collection[Bugs], case: Case
) -> list[Explanation]:
    """Return what explains a piece, of some sets of bugs, and leaves less than what it had."""
    search = case.search_over(piece)
    least = LESS * min(distance(one.atoms, piece, case) for one in had)
    here = (atoms for bugs in sets for atoms in acting(bugs, search))
    near = (atoms for atoms in here if distance(atoms, piece, case) < least)
    return search.explained_by(atoms for atoms in near if search.settles(atoms))


def larger(had: Collection[Explanation], sets: Iterator[Bugs]) -> Iterator[Bugs]:
    most = max(len(one.bugs) for one in had)
    return (bugs for bugs in sets if len(bugs) > most)
