"""What goes into each layer, dumped under the layer's name: read as the output of the one before.

`hidden_states` of transformers begin with the embedding, so number i goes into layer i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.steps.steps import Joined
from lockstep.parity.explaining.stream import is_embedding, layers_of, stream_start

SAID = (
    "{first} is what goes into the first layer, so the taps of layers are read as the outputs of "
    "the layers before them: number i of hidden_states goes into layer i"
)


def handed_in(case: Case) -> tuple[Joined, list[str]]:
    """Return where the taps are with those of layers moved one back, and a line, if they are so.

    A first layer that does nothing looks so too: as many layers have to be right as before.
    """
    layers = layers_of(case.graph.taps, case.dumped)
    first = next(iter(layers), None)
    if first is None or not first.endswith(".0") or len(layers) < 2:
        return case.sides, []
    if not is_embedding(case, case.dumped[layers[first]]):
        return case.sides, []
    sides = moved_back(case, [*layers])
    other = Case(case.model, case.graph, sides, case.dtype, [*case.faults.values()])
    sides.moved.clear()  # the case that is made of them counts anew
    if right_layers(other) < right_layers(case):
        return case.sides, []
    return sides, [SAID.format(first=case.sides.names[first])]


def moved_back(case: Case, layers: list[str]) -> Joined:
    """Return where the taps are with each layer's name for that of the one before."""
    numbers = case.graph.taps
    start = next((tap for tap, one in numbers.items() if one == stream_start(case.graph)), "")
    before = dict(zip(layers, [start, *layers[:-1]], strict=True))
    sides = case.sides

    def moved(known: Mapping[str, Any]) -> dict[str, Any]:
        stay = {tap: one for tap, one in known.items() if tap not in before}
        return {before[tap]: one for tap, one in known.items() if tap in before} | stay

    last = frozenset(before.get(tap, tap) for tap in sides.last)
    return replace(sides, names=moved(sides.names), parts=moved(sides.parts), last=last)


def right_layers(case: Case) -> int:
    """Count the layers whose output is right for what they were given."""
    layers = layers_of(case.graph.taps, case.dumped)
    pieces = [case.graph.piece(number, case.dumped) for number in layers.values()]
    return sum(case.trial.judge(piece).passed for piece in pieces)
