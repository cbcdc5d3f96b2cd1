"""Two layers that were exchanged, in a piece of many: the logits alone are dumped."""

import pytest

from lockstep.parity.explaining.searching.hypothesis import Atom, atoms_in, hypotheses
from lockstep.parity.faults import catalogue
from lockstep.parity.faults.loading import exchanged_by
from tests.parity.explaining.ports import explained, graph_of, port
from tests.parity.faults.planted import world
from tests.sampled import sampled

NAME, ALIKE, LENGTH = "models/sliding_bfloat16", "gemma4/effective", 12
ADAPTED = "adapters/mlx_lora"


def layers_of(atom: Atom, name: str) -> set[int | None]:
    return {graph_of(name, LENGTH).calls[number].layer for number in atom.calls}


@sampled(0)
@pytest.mark.parametrize(("first", "layers"), [(0, [0, 1]), (1, [1, 2])])
def test_they_are_named_as_one_bug(first, layers):
    """By witness: alone, either of the two leaves the logits as wrong as they are."""
    taps = port(NAME, [f"layers-swapped[{exchanged_by(1, first)}]"], level="logits", length=LENGTH)
    known = [one for one in catalogue() if one.id in ("layers-swapped", "attn-scale-missing")]
    found = explained(NAME, taps, known, length=LENGTH)
    (fault,) = found.faults
    assert (fault.id, fault.layers) == ("layers-swapped", layers)
    assert fault.variant == exchanged_by(1, first) and found.unexplained == []


def test_every_two_that_are_exchanged_are_thought_of_together_and_none_alone():
    """By hand, of four layers: two pairs, and both."""
    graph = graph_of(ALIKE, LENGTH)
    (fault,) = (one for one in catalogue() if one.id == "layers-swapped")
    one = next(h for h in hypotheses([fault], graph) if h.variant == exchanged_by(1, 0))
    places = range(len(graph.calls))
    found = [layers_of(atom, ALIKE) for atom in atoms_in(one, places, places, graph)]
    assert found == [{0, 1, 2, 3}, {0, 1}, {2, 3}]
    alone = [number for number in places if graph.calls[number].layer == 1]
    assert [*atoms_in(one, alone, alone, graph)] == []


def test_a_layer_that_is_another_one_with_its_adapter_has_all_of_it():
    """By hand: another layer's adapter behind the layer's own weights is another bug."""
    graph = world(ADAPTED).graph
    (fault,) = (one for one in catalogue() if one.id == "layers-swapped")
    one = next(h for h in hypotheses([fault], graph) if "i - 1, with" in h.variant)
    adds = [
        call.number for call in graph.calls if call.op == "add_lora" and call.number in one.calls
    ]
    piece = [graph.source(graph.calls[adds[0]], 0).number, adds[0]]
    assert [sorted(atom.calls) for atom in atoms_in(one, piece, piece, graph)] == [piece]
