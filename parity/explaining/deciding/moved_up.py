"""A layer that was left out of the count: those behind it have moved up, and the last is missing.

What is seen are layers with the weights of the next one, and a last layer past which the stream
goes. That is one bug, of the first of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lockstep.parity.explaining.deciding.left_layers import LAYER, behind, layers_before
from lockstep.parity.explaining.deciding.verdict import Chosen, Key
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.graph import Call, Graph

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

NEXT = "layers-swapped", "layer i has i + 1"
MOVED = "those behind it have moved up"


def name_moved_up(chosen: dict[Key, Chosen], case: Case) -> None:
    """Call layers that are the next ones, the last of which is missing, one that was left out."""
    moved, left = chosen.get(NEXT), chosen.get(LAYER)
    if moved is None or left is None or not reaches_the_end(moved, left, case):
        return
    bug = both(moved.hypothesis, left.hypothesis)
    last = case.graph.config.num_hidden_layers - 1
    gone = Atom(bug, behind({last}, left.hypothesis, case.graph))
    del chosen[NEXT], chosen[LAYER]
    chosen[bug.id, bug.variant] = Chosen(
        bug,
        [*moved.pieces, *left.pieces],
        [*(Atom(bug, atom.calls) for atom in moved.atoms), *[gone] * len(left.pieces)],
        [set() for _ in (*moved.pieces, *left.pieces)],  # nothing else is both
        [*moved.complete, *left.complete],
        moved.layers_in(case.graph)[:1],
    )


def reaches_the_end(moved: Chosen, left: Chosen, case: Case) -> bool:
    """Say whether the layers are the next ones up to the last but one, and no layer ends before."""
    layers, last = moved.layers_in(case.graph), case.graph.config.num_hidden_layers - 1
    at_the_end = all(layer >= last - 1 for layer in layers_before(left.calls, case.graph))
    return layers == [*range(layers[0], last)] and at_the_end


def both(moved: Hypothesis, left: Hypothesis) -> Hypothesis:
    """Return the one bug that both are."""

    def wrong(call: Call, graph: Graph) -> Call | None:
        return moved.rewrite(call, graph) or left.rewrite(call, graph)

    fault = replace(left.fault, variants={MOVED: wrong})
    return replace(left, fault=fault, variant=MOVED, calls=moved.calls | left.calls)
