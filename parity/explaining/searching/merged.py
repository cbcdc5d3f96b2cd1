"""Several bugs of the same calls that stand for one.

A mask that hides too much, another that hides even more, and one that is added where nothing is
seen any more: together they show all. So does a mask that is missing, and that is one bug. Heads
that are too short, with scores that nobody scales, are scores that are scaled twice. Adapters whose
scales are off each in its own way may all be off in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from lockstep.parity.explaining.searching.atom_sets import Atoms, count
from lockstep.parity.explaining.searching.hypothesis import Atom, in_order

MOST = 3  # bugs that one takes the place of


def merged(atoms: Atoms, others: Iterable[Atom]) -> Iterator[Atoms]:
    """Yield the set with one other bug in the place of several: of all within its own calls; of
    the same calls, of most first; then of two, where it is in the calls of one of them.
    """
    others = [one for one in others if one not in atoms]
    for other in others:
        inside = {one for one in atoms if one.calls <= other.calls}
        if len({one.calls for one in inside}) > 1 and covers(inside, other):
            yield atoms - inside | {other}
    ordered = in_order(atoms)
    for size in range(MOST, 1, -1):
        for some in combinations(ordered, size):
            calls = {one.calls for one in some}
            for other in others if len(calls) == 1 and count(some) == size else ():
                if {other.calls} == calls:
                    yield atoms - {*some} | {other}
    for some in combinations(ordered, 2):
        calls = {one.calls for one in some}
        for other in others if len(calls) == 2 else ():
            if other.calls in calls:
                yield atoms - {*some} | {other}


def covers(some: Iterable[Atom], other: Atom) -> bool:
    return frozenset().union(*(one.calls for one in some)) == other.calls
