"""What explains other pieces, tried on each piece when all were searched: they teach each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, permutations, zip_longest
from typing import TYPE_CHECKING

from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.atom_sets import Atoms, widest
from lockstep.parity.explaining.searching.hypothesis import Atom, in_order
from lockstep.parity.explaining.searching.lone import Bugs, replaced, sure
from lockstep.parity.explaining.searching.moved import in_same_modules

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.explaining.searching.search import Search
    from lockstep.parity.graph.graph import Graph, Piece

    Explained = Sequence[tuple[Piece, Sequence[Explanation]]]

EXCHANGED = 12  # explanations that like pieces offer each other, and so many with others' bugs
AS_WELL = 24  # sets with one bug for another, that are tried where a search was cut off

Pair = tuple[Atom, Atom]


def exchange(case: Case) -> None:
    """Add to the explanations of each piece those of like pieces that hold there too, and what
    does with a bug of other pieces in the place of one that this piece has alone.

    Where a search had no time for what does as well, other pieces say what that may be.
    """
    before = [(piece, [*some]) for piece, some in case.explained]
    own = {piece.target: [one.bugs for one in some] for piece, some in before}
    must = {target: sure(sets) for target, sets in own.items()}
    pairs = equals(case)
    for piece, explanations in [*case.explained]:
        search, here = case.search_over(piece), piece.target
        others = [some for target, some in must.items() if target != here]
        like = in_turn(of_like(piece, before, case.graph))
        theirs = (some for some in like if some not in own[here])
        sets = [*islice(theirs, EXCHANGED), *islice(replaced(own[here], others), EXCHANGED)]
        explanations += offered(search, explanations, sets)
        explanations += as_well(search, explanations, pairs)
        if search.cleared is not None:
            case.clear(piece, search.cleared)


def of_like(piece: Piece, explained: Explained, graph: Graph) -> list[list[Bugs]]:
    """Return the sets of bugs that explain each of the like pieces."""
    kind = graph.kind(piece)
    others = (entry for entry in explained if entry[0] != piece)
    return [[one.bugs for one in some] for other, some in others if graph.kind(other) == kind]


def in_turn(lists: Iterable[Iterable[Bugs]]) -> Iterator[Bugs]:
    """Yield the first of every list, then the second ones, each but once."""
    yield from dict.fromkeys(filter(None, chain.from_iterable(zip_longest(*lists))))


def offered(search: Search, had: Sequence[Explanation], sets: Sequence[Bugs]) -> list[Explanation]:
    """Return what explains a piece beside what it has, of the bugs of like pieces."""
    known = {one.bugs for one in had}
    found: list[Explanation] = []
    for some in dict.fromkeys(sets):
        if some not in known and len(some) > 1:
            here = acting(some, search)
            found += search.explained_by(atoms for atoms in here if search.settles(atoms))
    return found


def acting(bugs: Bugs, search: Search) -> list[Atoms]:
    """Return a set of bugs as it acts in a piece, each in most calls; none if none of them does."""
    return widest(atom for atom in search.atoms if atom.hypothesis in bugs)[:1]


def equals(case: Case) -> list[Pair]:
    """Return what was told to be equal in any piece: first one bug and another, then variants."""
    found = dict.fromkeys(pair for _, some in case.explained for pair in told_equal(some))
    return sorted(found, key=lambda pair: pair[0].hypothesis.id == pair[1].hypothesis.id)


def told_equal(some: Sequence[Explanation]) -> Iterator[Pair]:
    """Yield two bugs of which either explains a piece, all else the same."""
    for one, other in permutations(some, 2):
        mine, theirs = one.atoms - other.atoms, other.atoms - one.atoms
        if len(mine) == len(theirs) == 1:
            yield next(iter(mine)), next(iter(theirs))


def as_well(search: Search, had: Sequence[Explanation], pairs: Sequence[Pair]) -> list[Explanation]:
    """Return what explains a piece as well, of what did in others, where a search was cut off.

    Of sets that only differ in variants, the first one stands for all.
    """
    known = {one.atoms for one in had}
    cut_off: dict[frozenset[str], Atoms] = {}
    for one in had:
        if not one.complete:
            cut_off.setdefault(frozenset(bug.id for bug in one.bugs), one.atoms)
    sets = (some for atoms in cut_off.values() for some in with_equal(atoms, pairs, search))
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
