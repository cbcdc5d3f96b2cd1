"""What is done to an adapter that a rule brings into a piece: without the rule it does nothing.

No measure says that a wrong scale comes nearer where there is no adapter yet, nor that an adapter
does that is scaled wrongly. So both are tried at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from lockstep.parity.explaining.searching.atom_sets import Atoms, in_parts
from lockstep.parity.explaining.searching.seen import FAINT

if TYPE_CHECKING:
    from lockstep.parity.explaining.searching.hypothesis import Atom
    from lockstep.parity.explaining.searching.settling import Settling

MOST = 2  # bugs at once beside the rule
TOGETHER = 64  # sets that are looked at before the budget is asked again


def beside_what_is_brought(search: Settling) -> list[Atoms]:
    """Return the smallest sets that explain a piece: a rule, and bugs of what it alone brings."""
    for size in range(1, MOST + 1):
        found: list[Atoms] = []
        for part in in_parts(of_size(size, search), TOGETHER):
            if search.spent:
                return found
            search.look_at(part, None)
            found += [atoms for atoms in part if search.settles(atoms)]
        if found:
            return found
    return []


def of_size(size: int, search: Settling) -> Iterator[Atoms]:
    """Yield the sets of a rule and so many bugs of what it brings, none in two variants."""
    for rule in (atom for atom in search.atoms if atom.hypothesis.throughout):
        for some in combinations(idle_beside(rule, search), size):
            if len({atom.hypothesis.id for atom in some}) == size:
                yield frozenset([rule, *some])


def idle_beside(rule: Atom, search: Settling) -> list[Atom]:
    """Return the bugs that change the calls of a rule, and move nothing without it."""
    same = (atom for atom in search.atoms if atom.calls == rule.calls and atom != rule)
    return [atom for atom in same if search.effect(atom, 0, None) < FAINT]
