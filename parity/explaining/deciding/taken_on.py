"""A sum that lacks its stream may lack it in the dump alone: what the port computed next says so.

A hook may see what attention or the MLP returns before it is added, under the name of the sum. The
port went on from the sum then, and has no such bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.parity.explaining.conventions.readings import takers_of
from lockstep.parity.explaining.explanation import Explanation

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.graph.graph import Piece

BARE = "residual-missing"


def keep_taken_on(case: Case) -> None:
    """Take out sums without their stream that nothing goes on from; open what has nothing else.

    Like pieces tell of each other: behind the last layer there may be nothing in the dump.
    """
    kind = case.graph.kind
    bare = [piece for piece, some in case.explained if any(is_bare(one, piece) for one in some)]
    shown = {kind(piece) for piece in bare if is_taken_on(piece, case)}
    doubted = {piece.target for piece in bare if kind(piece) not in shown}
    kept = [
        (piece, [one for one in some if piece.target not in doubted or not is_bare(one, piece)])
        for piece, some in case.explained
    ]
    case.open += [piece for piece, some in kept if not some]
    case.explained = [(piece, some) for piece, some in kept if some]


def is_bare(one: Explanation, piece: Piece) -> bool:
    """Say whether an explanation says that the dumped value itself lacks its stream."""
    return any(atom.hypothesis.id == BARE and piece.target in atom.calls for atom in one.atoms)


def is_taken_on(piece: Piece, case: Case) -> bool:
    """Say whether the first that is computed from a dumped value is right, or explained."""
    known = {one.target for one in case.right} | {one.target for one, _ in case.explained}
    first = next(iter(takers_of(piece.target, case.trial)), None)
    return first is not None and first.target in known
