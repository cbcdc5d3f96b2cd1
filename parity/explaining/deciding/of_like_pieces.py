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
from lockstep.parity.explaining.searching.atom_sets import Atoms, widest
from lockstep.parity.explaining.searching.earned import LESS
from lockstep.parity.explaining.searching.exchange import as_well, equals, in_turn
from lockstep.parity.explaining.searching.lone import Bugs

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.explaining.searching.search import Search
    from lockstep.parity.graph.graph import Piece

ASKED = 12  # sets of like pieces


def prefer_like_pieces(case: Case) -> None:
    """Put what explains like pieces in the place of what leaves clearly more than that does."""
    pairs = equals(case)
    for piece, some in case.explained:
        search = case.search_over(piece)
        least = LESS * min(distance(one.atoms, piece, case) for one in some)
        sets = islice(larger(some, in_turn(like(piece, case))), ASKED)
        here = (atoms for bugs in sets for atoms in acting(bugs, search))
        near = (atoms for atoms in here if distance(atoms, piece, case) < least)
        found = search.explained_by(atoms for atoms in near if search.settles(atoms))
        some[:] = [*found, *as_well(search, found, pairs)] or some


def like(piece: Piece, case: Case) -> list[list[Bugs]]:
    """Return the sets of bugs that explain each of the like pieces."""
    kind = case.graph.kind(piece)
    others = (entry for entry in case.explained if entry[0] != piece)
    return [[one.bugs for one in some] for other, some in others if case.graph.kind(other) == kind]


def larger(had: Collection[Explanation], sets: Iterator[Bugs]) -> Iterator[Bugs]:
    most = max(len(one.bugs) for one in had)
    return (bugs for bugs in sets if len(bugs) > most)


def acting(bugs: Bugs, search: Search) -> list[Atoms]:
    """Return a set of bugs as it acts in a piece."""
    return widest(atom for atom in search.atoms if atom.hypothesis in bugs)[:1]
