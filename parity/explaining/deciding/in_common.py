"""One wrong value that several pieces take is one bug, where other bugs would explain each alone.

A value that the dump lacks may go into a norm and into the layer's end. If that value alone is
wrong, so are both, and two other bugs would have to agree by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.hypothesis import Atom
from lockstep.parity.graph import Graph
from lockstep.parity.graph.graph import Piece


def in_common(
    explained: Sequence[tuple[Piece, list[Explanation]]],
    beside: Callable[[Atom], int],
    graph: Graph,
) -> set[Atom]:
    """Return what explains several pieces of a layer by the very calls that they have in common.

    Nothing may speak against it in that layer. What all layers have in common, such as the mask,
    would be wrong in all of them.
    """
    pieces: dict[Atom, set[int]] = {}
    for piece, explanations in explained:
        for atom in {atom for one in explanations for atom in one.atoms}:
            if atom.calls.issubset(piece.calls):
                pieces.setdefault(atom, set()).add(piece.target)
    return {
        atom for atom, found in pieces.items()
        if len(found) > 1 and is_in_a_layer(atom, graph) and not beside(atom)
    }  # fmt: skip


def is_in_a_layer(atom: Atom, graph: Graph) -> bool:
    return all(graph.calls[number].layer is not None for number in atom.calls)
