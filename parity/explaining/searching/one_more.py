"""One bug more than like pieces have, by all tokens at once: by few of them many do as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.parity.explaining.searching.atom_sets import Atoms, smallest

if TYPE_CHECKING:
    from lockstep.parity.explaining.searching.hypothesis import Atom
    from lockstep.parity.explaining.searching.settling import Settling

NEAR = 1 / 50  # of the error, that what a like piece has leaves at most
MOST = 4  # larger sets that are asked in full


def one_more(search: Settling, taught: Sequence[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
    """Return what explains a piece on top of what was taught, if that explains nearly all of it."""
    search.look_at([frozenset(), *taught], None)
    least = NEAR * search.fit(frozenset())[0]
    near = [atoms for atoms in taught if search.fit(atoms)[0] < least]
    if not near:
        return []
    best = min(near, key=lambda atoms: search.fit(atoms)[0])
    larger = [best | {one} for one in visible if one not in best]
    search.look_at(larger, None)
    nearest = sorted(larger, key=lambda atoms: search.fit(atoms)[0])[:MOST]
    return smallest(filter(search.earned, map(search.fewest, filter(search.settles, nearest))))
