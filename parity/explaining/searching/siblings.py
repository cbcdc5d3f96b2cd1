"""What explains a piece as well with one bug exchanged for another: that is what cannot be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.parity.explaining.searching.atom_sets import Atoms, smallest
from lockstep.parity.explaining.searching.hypothesis import in_order

if TYPE_CHECKING:
    from lockstep.parity.explaining.searching.hypothesis import Atom
    from lockstep.parity.explaining.searching.settling import Settling

MOST = 8  # sets that are asked
MERGED = 3  # bugs of a set, of which two may be one beside the third


def with_siblings(search: Settling, found: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
    """Return the sets, and those that do as well with one bug exchanged for another.

    Beside another variant of one bug, one may do what several do beside the first: then that.
    """
    every = siblings(search, found, visible)
    other = [atoms for atoms in every if len(atoms) >= MERGED and atoms not in found][:MOST]
    fewer = [*filter(search.earned, map(search.fewest, other))]
    if fewer and min(map(len, fewer)) < min(map(len, found)):
        return siblings(search, smallest(fewer), visible)
    return every


def siblings(search: Settling, found: list[Atoms], visible: Sequence[Atom]) -> list[Atoms]:
    """Exchange each bug of each set; in a larger set for one that does the same."""
    every = dict.fromkeys(found)
    for atoms in found[:MOST]:
        for atom in in_order(atoms):
            for other in visible if len(atoms) == 1 else search.alike(atoms, atom, visible):
                if other not in atoms and not search.spent:
                    sibling = atoms - {atom} | {other}
                    if search.settles(sibling):
                        every.setdefault(sibling)
    return list(every)
