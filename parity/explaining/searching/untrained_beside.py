"""Random numbers in a projection's place, beside bugs that like pieces have.

What goes into the projection is computed as the port does, with these. Inside of a layer whose
output alone was dumped, what attention put into the stream is led back to through the MLP as the
port has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.parity.explaining.searching.hypothesis import rewritten
from lockstep.parity.explaining.searching.untrained import (
    Random,
    Sample,
    inner_samples,
    of_random_numbers,
    projection,
    sampled,
)
from lockstep.parity.graph import Call
from lockstep.parity.graph.evaluator import Rewritten
from lockstep.parity.graph.refusals import if_computable

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.explaining.said.diagnosis import Named
    from lockstep.parity.graph.graph import Piece


def untrained_beside(case: Case) -> Iterator[Random]:
    """Yield the open pieces, of one layer at most, that are or hold random numbers."""
    for piece in case.open:
        one = next(named_beside(case, piece), None)
        if one is not None:
            yield Random(piece, one, seen=projection(piece, case.graph) is not None)


def named_beside(case: Case, piece: Piece) -> Iterator[Named]:
    """Yield what shows random numbers, beside what explains other pieces."""
    for atoms in (*case.taught(piece), *case.elsewhere(piece)):
        calls = rewritten(atoms, case.graph)
        found = samples_beside(case, piece, calls) if calls else []
        named = (of_random_numbers(call, case, sample, piece) for call, sample in found)
        yield from filter(None, named)


def samples_beside(case: Case, piece: Piece, beside: Rewritten) -> list[tuple[Call, Sample]]:
    """Return the projections that a piece ends with or holds, and what their inputs show."""
    call = projection(piece, case.graph)
    with if_computable():
        if call is not None:
            sample = sampled_at_end(call, case, piece, beside)
            return [] if sample is None else [(call, sample)]
        several = case.graph.several(piece)
        return [] if several else [*inner_samples(piece, case, beside)]
    return []


def sampled_at_end(call: Call, case: Case, piece: Piece, beside: Rewritten) -> Sample | None:
    """Return what the inputs of a piece's last projection show, beside other wrong calls."""
    cut = None if call.number == piece.target else piece.target
    return sampled(call, case, case.dumped[piece.target], cut=cut, beside=beside)
