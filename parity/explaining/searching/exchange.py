"""What explains other pieces, tried on each piece when all were searched: they teach each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, permutations
from typing import TYPE_CHECKING

from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.atom_sets import Atoms, widest
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, in_order
from lockstep.parity.explaining.searching.lone import replaced, sure
from lockstep.parity.explaining.searching.moved import in_same_modules

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.explaining.searching.search import Search

EXCHANGED = 12  # explanations that like pieces offer each other, and so many with others' bugs
AS_WELL = 24  # sets with one bug for another, that are tried where a search was cut off

Pair = tuple[Atom, Atom]


def exchange(case: Case) -> None:
    """Add to the explanations of each piece those of like pieces that hold there too, and what
    does with a bug of other pieces in the place of one that this piece has alone.

    Where a search had no time for what does as well, other pieces say what that may be.
    """
    found: dict[tuple[str, ...], dict[frozenset[Hypothesis], None]] = {}
    own = {piece.target: [one.bugs for one in some] for piece, some in case.explained}
    for piece, _ in case.explained:
        found.setdefault(case.graph.kind(piece), {}).update(dict.fromkeys(own[piece.target]))
    must = {target: sure(sets) for target, sets in own.items()}
    pairs = [*dict.fromkeys(pair for _, some in case.explained for pair in told_equal(some))]
    for piece, explanations in [*case.explained]:
        search, here = case.search_over(piece), piece.target
        sets = list(found[case.graph.kind(piece)])[:EXCHANGED]
        others = [some for target, some in must.items() if target != here]
        sets += islice(replaced(own[here], others), EXCHANGED)
        explanations += offered(search, explanations, sets)
        explanations += as_well(search, explanations, pairs)
        if search.cleared is not None:
            case.clear(piece, search.cleared)


def offered(
    search: Search, had: Sequence[Explanation], sets: Sequence[frozenset[Hypothesis]]
) -> list[Explanation]:
    """Return what explains a piece beside what it has, of the bugs of like pieces."""
    known = {one.bugs for one in had}
    found: list[Explanation] = []
    for some in dict.fromkeys(sets):
        atoms = widest(atom for atom in search.atoms if atom.hypothesis in some)
        if some not in known and len(some) > 1 and atoms and search.settles(atoms[0]):
            found += search.explained_by(atoms[:1])
    return found


def told_equal(some: Sequence[Explanation]) -> Iterator[Pair]:
    """Yield two bugs of which either explains a piece, all else the same."""
    for one, other in permutations(some, 2):
        mine, theirs = one.atoms - other.atoms, other.atoms - one.atoms
        if len(mine) == len(theirs) == 1:
            yield next(iter(mine)), next(iter(theirs))


def as_well(search: Search, had: Sequence[Explanation], pairs: Sequence[Pair]) -> list[Explanation]:
    """Return what explains a piece as well, of what did in others, if its search was cut off."""
    if any(one.complete for one in had):
        return []
    known = {one.atoms for one in had}
    sets = (some for one in had for some in with_equal(one.atoms, pairs, search))
    new = islice((some for some in dict.fromkeys(sets) if some not in known), AS_WELL)
    return search.explained_by(some for some in new if search.settles(some))


def with_equal(atoms: Atoms, pairs: Sequence[Pair], search: Search) -> Iterator[Atoms]:
    """Yield a set with one of its bugs exchanged for what did the same in another piece."""
    for mine in in_order(atoms):
        for lost, other in pairs:
            if lost.hypothesis == mine.hypothesis:
                instead = in_same_modules(frozenset([other]), search.piece, search.trial.graph)
                if instead and instead.isdisjoint(atoms):
                    yield atoms - {mine} | instead
