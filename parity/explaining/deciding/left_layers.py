"""A layer of which neither branch is added is a layer that was left out.

Both leave the stream as it was. Where the dump holds nothing of the layer's inside, it was not run;
where it does, it was, and its branches were not added.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from lockstep.parity.explaining.deciding.verdict import Chosen, Key
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.faults.residual import SUMS
from lockstep.parity.graph import Graph
from lockstep.parity.graph.graph import Piece

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

BRANCHES, LAYER = ("branch-not-added", ""), ("layer-left-out", "")


def name_left_layers(chosen: dict[Key, Chosen], case: Case) -> None:
    """Call branches that are not added layers that were left out, if they are these."""
    bug = chosen.get(BRANCHES)
    layer = left_out(case)
    left = empty_layers(bug, case) if bug is not None else set()
    if bug is None or layer is None or not left:
        return
    other = chosen.get(LAYER) or Chosen(layer)
    atoms = [Atom(layer, behind(left, layer, case.graph))] * len(bug.pieces)
    chosen[LAYER] = Chosen(
        layer,
        [*other.pieces, *bug.pieces],
        [*other.atoms, *atoms],
        [*other.rivals, *(some | {BRANCHES} for some in bug.rivals)],
        [*other.complete, *bug.complete],
    )
    del chosen[BRANCHES]


def name_unseen_layers(chosen: dict[Key, Chosen], case: Case) -> None:
    """Call what may be a layer that was left out that, if other layers alone show their inside.

    Matrices of nought, say, would leave what the layer computes in the dump.
    """
    inside, layer = shown_inside(case), left_out(case)
    if layer is None or inside <= {None}:
        return
    for key, bug in [*chosen.items()]:
        there = [one for one, some in zip(bug.pieces, bug.rivals, strict=True) if LAYER in some]
        gone = [(one, layers_of(bug, one, case)) for one in there]
        unseen = [one for one, layers in gone if layers and not inside & layers]
        if key == LAYER or not unseen:
            continue
        add_left(chosen, layer, bug, unseen, case)
        chosen[key] = bug.but_in(unseen)
        if not chosen[key].pieces:
            del chosen[key]


def left_out(case: Case) -> Hypothesis | None:
    """Return the bug of a layer that was left out, if it is thought of."""
    return next((one for one in case.hypotheses if (one.id, one.variant) == LAYER), None)


def shown_inside(case: Case) -> set[int | None]:
    """Return the layers of which the dump holds more than they hand out."""
    graph = case.graph
    return {graph.calls[one].layer for one in case.dumped.keys() - outputs(graph)}


def layers_of(bug: Chosen, piece: Piece, case: Case) -> set[int]:
    """Return the layers that a bug acts on in one of its pieces; behind all of them is none."""
    (atom,) = (atom for one, atom in zip(bug.pieces, bug.atoms, strict=True) if one is piece)
    layers = (case.graph.calls[number].layer for number in atom.calls)
    return {one for one in layers if one is not None}


def add_left(
    chosen: dict[Key, Chosen], layer: Hypothesis, bug: Chosen, pieces: list[Piece], case: Case
) -> None:
    """Add some pieces of a bug to those behind a layer that was left out."""
    left = chosen.setdefault(LAYER, Chosen(layer))
    key = bug.hypothesis.id, bug.hypothesis.variant
    for piece, some, complete in zip(bug.pieces, bug.rivals, bug.complete, strict=True):
        if any(piece is one for one in pieces):
            gone = behind(layers_of(bug, piece, case), layer, case.graph)
            left.pieces.append(piece)
            left.atoms.append(Atom(layer, gone))
            left.rivals.append((some | {key}) - {LAYER})
            left.complete.append(complete)


def empty_layers(bug: Chosen, case: Case) -> set[int]:
    """Return the layers that add nothing, if the bug is in such alone and none shows its inside."""
    calls, graph = bug.calls, case.graph
    layers = {layer for one in calls if (layer := graph.calls[one].layer) is not None}
    sums = {layer: sums_of(layer, graph) for layer in layers}
    full = all(calls >= some for some in sums.values())
    return layers if full and not layers & shown_inside(case) else set()


def sums_of(layer: int, graph: Graph) -> set[int]:
    every = (call for call in graph.calls if call.layer == layer and call.op == "add")
    return {call.number for call in every if call.place in SUMS}


def outputs(graph: Graph) -> set[int]:
    """Return the values that layers hand out."""
    found: dict[int, int] = {}
    for call in graph.calls:
        if call.layer is not None:
            found[call.layer] = call.number
    return {*found.values()}


def behind(layers: set[int], left_out: Hypothesis, graph: Graph) -> frozenset[int]:
    """Return the calls that take what these layers hand out."""
    return frozenset(one for one in left_out.calls if layer_before(one, graph) in layers)


def layers_before(numbers: Collection[int], graph: Graph) -> set[int]:
    """Return the layers that calls leave out: what one of these would take is nobody's concern."""
    left = {layer_before(number, graph) for number in numbers}
    return {layer_before(one, graph) for one in numbers if graph.calls[one].layer not in left}


def layer_before(number: int, graph: Graph) -> int:
    """Return the layer before that of a call, the last one if the call is behind all layers."""
    layer = graph.calls[number].layer
    return (len(outputs(graph)) if layer is None else layer) - 1
