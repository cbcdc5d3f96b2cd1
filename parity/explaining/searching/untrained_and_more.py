"""Random numbers in a projection's place, in a layer that has one bug more than the other layers.

What goes into the projection is known only with that bug. With the right one a matrix makes the
port's output of it, and its numbers are as large as fresh ones; with a wrong one none does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lockstep.parity.explaining.said.diagnosis import MOST_TIES, Named
from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import Atom, rewritten
from lockstep.parity.explaining.searching.price import most_computations
from lockstep.parity.explaining.searching.untrained import (
    Random,
    Sample,
    of_random_numbers,
    projection,
)
from lockstep.parity.explaining.searching.untrained_beside import sampled_at_end
from lockstep.parity.graph import Call
from lockstep.parity.graph.call import Value
from lockstep.parity.graph.refusals import if_computable

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.graph.graph import Piece

SETS = 3  # of those that explain like pieces, which one bug more is tried beside
DEAR = 5  # computations of a value that a sample takes: its sides, and the inputs' directions
ALIKE = 2.0  # times what the best leaves, for another bug to do as well


class More(NamedTuple):
    """A bug beside those that like pieces have, what any matrix leaves, and what is said then."""

    left: float
    atom: Atom
    random: Named


def untrained_and_more(case: Case) -> Iterator[Random]:
    """Yield of the pieces that nothing explains the random numbers and the one bug more."""
    for piece in case.open:
        found = sorted(tried(case, piece), key=lambda one: (one.left, one.atom.hypothesis.order))
        if found:
            yield Random(piece, found[0].random, seen=True)
            yield Random(piece, said(case, piece, found), seen=True)


def tried(case: Case, piece: Piece) -> Iterator[More]:
    """Yield what shows random numbers, of each bug more, until as much was computed as in a search.

    A bug that leaves the projection's input as it is shows what the others show, which is nothing.
    """
    call, start = projection(piece, case.graph), case.trial.count
    if call is None:
        return
    most = most_computations(case.trial, piece)
    for atoms in known(case, piece):
        before = given(case, call, atoms)
        for atom in others(case, piece, atoms, call):
            if case.trial.count - start >= most:
                return
            now = given(case, call, atoms | {atom})
            if now is None or (before is not None and np.array_equal(now, before)):
                continue
            sample = sample_with(case, call, piece, atoms | {atom})
            random = None if sample is None else of_random_numbers(call, case, sample, piece)
            if sample is not None and random is not None:
                yield More(sample.left, atom, random)


def known(case: Case, piece: Piece) -> list[Atoms]:
    """Return what explains like pieces, which is nothing where one is right."""
    kind = case.graph.kind
    found = case.taught(piece)[:SETS]
    right = any(kind(one) == kind(piece) for one in case.right)
    return found or ([frozenset()] if right else [])


@np.errstate(all="ignore")  # a broken port may hold anything
def given(case: Case, call: Call, atoms: Atoms) -> np.ndarray | None:
    """Return what goes into a projection, with some bugs; None if that cannot be."""
    calls, ref = rewritten(atoms, case.graph), call.inputs[0]
    case.trial.count += 1
    if calls is None or not isinstance(ref, Value):
        return None
    with if_computable():
        return case.trial.centre(None).given(ref.number, calls)
    return None


def sample_with(case: Case, call: Call, piece: Piece, atoms: Atoms) -> Sample | None:
    """Return what the inputs of a projection show, with some bugs; None if that cannot be."""
    calls = rewritten(atoms, case.graph)
    case.trial.count += DEAR
    with if_computable():
        return None if calls is None else sampled_at_end(call, case, piece, calls)
    return None


def others(case: Case, piece: Piece, atoms: Atoms, call: Call) -> Iterator[Atom]:
    """Yield the bugs that act before a projection, beside those that are known."""
    for atom in case.candidates(piece):
        if atom not in atoms and atom.calls.isdisjoint({call.number, piece.target}):
            yield atom


def said(case: Case, piece: Piece, found: list[More]) -> Named:
    """Return the bug more; who fits as well has left as little."""
    best, judged = found[0].atom.hypothesis, case.judged[piece.target]
    alike = [one.atom.hypothesis for one in found if one.left <= ALIKE * found[0].left]
    layer = case.graph.calls[piece.target].layer
    ties = sorted({one.id for one in alike} - {best.id})[:MOST_TIES]
    return Named(
        id=best.id,
        variant=best.variant or None,
        taps=[case.tap(piece)],
        layers=[] if layer is None else [layer],
        confidence=round(0.99 / (1 + len(ties)), 3),
        residual_before=judged.own_error,
        residual_after=judged.own_error,  # nobody knows the numbers behind it
        noise=judged.noise,
        runner_up=None,
        also_fits=ties,
        fix=best.fault.fix,
        wrong=best.fault.wrong,
        right=best.fault.right,
    )
