"""What is known to be wrong elsewhere, tried on one piece before anything else."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from lockstep.parity.explaining.searching.atom_sets import Atoms, count, smallest, widest
from lockstep.parity.explaining.searching.by_few_tokens import DEEPEST
from lockstep.parity.explaining.searching.hypothesis import Atom
from lockstep.parity.explaining.searching.seen import VISIBLE

if TYPE_CHECKING:
    from lockstep.parity.explaining.searching.search import Search

MOST = 10  # known bugs of which every subset is tried


def as_taught(search: Search, taught: Sequence[Atoms]) -> list[Atoms]:
    """Return the smallest of the sets that explained other pieces, where they do here."""
    found = (search.needed(atoms) for atoms in taught if search.explains(atoms, patient=True))
    return smallest(filter(search.earned, found))


def among(search: Search, known: Sequence[Atom]) -> list[Atoms]:
    """Return the smallest sets of known bugs that explain the piece."""
    visible = [atom for atom in known if search.effect(atom, 0, None) > VISIBLE]
    found = search.singles(visible, patient=True)
    if found:
        return found
    here = sorted(visible, key=lambda atom: -len(atom.calls))[:MOST]
    for size in range(2, min(len(here), DEEPEST) + 1):
        some = (frozenset(bugs) for bugs in combinations(here, size) if count(bugs) == size)
        found = [atoms for atoms in some if not search.spent and search.settles(atoms)]
        if found:
            return found
    return []


def of_known(search: Search, known: Sequence[Atom], taught: Sequence[Atoms]) -> list[Atoms]:
    """Explain the piece by known bugs alone, wherever they act, seen by themselves or not."""
    if not known or search.cleared is not None:
        return []
    search.patient = True
    with search.budget.of(search.work // 4):
        found = search.attempted([[*taught, frozenset()]], known)
    search.patient = False
    return found


def beside_known(search: Search, known: Sequence[Atom], visible: Sequence[Atom]) -> list[Atoms]:
    """Explain a piece that has the same for every token by one bug beside those that are known.

    Many sets of others would leave that.
    """
    known = [atom for atom in known if atom in visible]
    larger = [some | {one} for some in widest(known) for one in visible if one not in some]
    search.look_at(larger, None)
    found = [search.fewest(atoms) for atoms in larger if search.explains(atoms)]
    return smallest(filter(search.earned, found))
