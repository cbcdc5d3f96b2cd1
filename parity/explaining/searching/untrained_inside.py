"""Random numbers in the place of a projection inside of a piece, beside bugs that like pieces have.

Of a layer whose output alone was dumped, what attention put into the stream is led back to through
the MLP as the port has it, and what went into the projection is computed as the port does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.parity.explaining.searching.hypothesis import rewritten
from lockstep.parity.explaining.searching.untrained import Random, inner_samples, projection, told
from lockstep.parity.graph.evaluator import Rewritten

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.explaining.said.diagnosis import Named
    from lockstep.parity.graph.graph import Piece

SETS = 6  # of those that explain like pieces


def untrained_inside(case: Case) -> Iterator[Random]:
    """Yield the open pieces of one layer that hold random numbers beside what others have."""
    for piece in case.open:
        if projection(piece, case.graph) or case.graph.several(piece):
            continue
        one = next(held(case, piece), None)
        if one is not None:
            yield Random(piece, one, seen=False)


def held(case: Case, piece: Piece) -> Iterator[Named]:
    for beside in like(case, piece):
        try:
            found = [*inner_samples(piece, case, beside)]
        except ValueError:  # shapes that this model does not have
            continue
        named = (told(call, case, sample, piece) for call, sample in found)
        yield from filter(None, named)


def like(case: Case, piece: Piece) -> Iterator[Rewritten]:
    """Yield what explains other pieces, as it would be in this one."""
    sets = [*case.taught(piece), *case.elsewhere(piece)]
    for atoms in sets[:SETS]:
        calls = rewritten(atoms, case.graph)
        if calls:
            yield calls
