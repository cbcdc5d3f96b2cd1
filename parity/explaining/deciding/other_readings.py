"""The same bugs in other variants, where the gate cannot tell which of them the port has.

Variants of one bug that explain a piece as well may differ in what a quiet bug makes of them:
values that turn by right tables, and values that turn by the tables of the keys, are alike until
something is a little wrong with those tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import islice, product

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.deciding.verdict import Chosen
from lockstep.parity.explaining.deciding.votes import FAITHFUL, Ballot
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.graph.graph import Piece

MOST = 4  # readings that are asked beside the first


def readings(case: Case, chosen: Collection[Chosen], ballot: Ballot) -> Iterator[list[Chosen]]:
    """Yield what was found with other variants, if some bits of the port are not explained yet."""
    every = [[bug, *(read_as(bug, one) for one in variants(bug, ballot, case))] for bug in chosen]
    yield from map(list, islice(product(*every), 1, 1 + MOST))


def variants(bug: Chosen, ballot: Ballot, case: Case) -> list[Hypothesis]:
    """Return the variants of a bug that explain its pieces as well, if their bits are in doubt."""
    same = [one for one in case.hypotheses if one.id == bug.hypothesis.id]
    found = [one for one in same if (one.id, one.variant) in bug.ties]
    sure = all(ballot.convention(one, None)[1] >= FAITHFUL for one in bug.pieces) if found else True
    return [] if sure else found


def read_as(bug: Chosen, variant: Hypothesis) -> Chosen:
    """Return a bug in another variant, in the same calls where that acts in these."""
    pairs = zip(bug.pieces, bug.atoms, strict=True)
    atoms = [Atom(variant, acting(variant, piece, atom)) for piece, atom in pairs]
    return replace(bug, hypothesis=variant, atoms=atoms)


def acting(variant: Hypothesis, piece: Piece, atom: Atom) -> frozenset[int]:
    """Return the calls of a piece in which a variant acts, those of another one first: all of them
    if it is in all or in none.
    """
    every = variant.calls & frozenset(piece.calls)
    return every if variant.whole else atom.calls & variant.calls or every
