"""A sum that lacks a side may lack it in the dump alone: what the port computed next says so.

A hook may see what attention or the MLP returns before it is added, under the name of the sum, or
the stream before that. The port went on from the sum then, and has no such bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.parity.explaining.conventions.readings import takers_of
from lockstep.parity.explaining.deciding.kept import keep_if
from lockstep.parity.explaining.explanation import Explanation

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.graph.graph import Piece

BARE = ("residual-missing", "branch-not-added")


def keep_taken_on(case: Case) -> None:
    """Take out sums of one side that nothing goes on from; open what has nothing else.

    Like pieces tell of each other: behind the last layer there may be nothing in the dump.
    """
    kind = case.graph.kind
    bare = [
        piece for piece, some in case.explained if any(is_bare(one, piece, case) for one in some)
    ]
    shown = {kind(piece) for piece in bare if is_taken_on(piece, case)}
    doubted = {piece.target for piece in bare if kind(piece) not in shown}
    keep_if(case, lambda piece, one: piece.target not in doubted or not is_bare(one, piece, case))


def is_bare(one: Explanation, piece: Piece, case: Case) -> bool:
    """Say whether an explanation says that the dumped value itself is one side of its sum.

    Gemma 4 multiplies the sum by a number of the layer's before it is dumped.
    """
    last = case.graph.calls[piece.target]
    sums = case.graph.sources(last.number) if last.op == "gain" else frozenset([last.number])
    return any(atom.hypothesis.id in BARE and sums & atom.calls for atom in one.atoms)


def is_taken_on(piece: Piece, case: Case) -> bool:
    """Say whether the first that is computed from a dumped value is no open question."""
    unknown = {one.target for one in case.open}
    first = next(iter(takers_of(piece.target, case.trial)), None)
    return first is not None and first.target not in unknown
