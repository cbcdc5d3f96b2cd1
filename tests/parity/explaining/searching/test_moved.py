"""What explains one layer, as it would act in another."""

from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, hypotheses
from lockstep.parity.explaining.searching.moved import moved
from lockstep.parity.faults import catalogue
from tests.parity.explaining.ports import graph_of

NAME = "gemma4/effective"  # four layers


def test_an_explanation_moves_to_the_same_calls_of_another_layer():
    """By hand: the second bug is not in the other layer at all."""
    every = Hypothesis(None, "every", "", 0, frozenset({1, 2, 11, 12}))  # pyright: ignore[reportArgumentType]
    alone = Hypothesis(None, "alone", "", 0, frozenset({2}))  # pyright: ignore[reportArgumentType]
    atoms = frozenset([Atom(every, frozenset({2})), Atom(alone, frozenset({2}))])
    (found,) = moved(atoms, {1: 11, 2: 12}, [], graph_of(NAME))
    assert found == {Atom(every, frozenset({12}))}


def test_of_two_layers_that_were_exchanged_each_tells_the_other():
    """By hand: the second has the weights of the first, so the first has those of the second."""
    graph = graph_of(NAME)
    known = hypotheses([one for one in catalogue() if one.id == "layers-swapped"], graph)
    (before,) = (one for one in known if one.variant == "layer i has i - 1")
    layers = [[n for n, call in enumerate(graph.calls) if call.layer == one] for one in (1, 0)]
    here = dict(zip(*layers, strict=True))
    atoms = frozenset([Atom(before, before.calls & {*layers[0]})])
    nothing, *found = moved(atoms, here, known, graph)
    assert nothing == frozenset()
    assert [[atom.hypothesis.variant for atom in one] for one in found] == [["layer i has i + 1"]]
    assert all(atom.calls <= {*layers[1]} for one in found for atom in one)


def test_one_of_two_that_could_be_exchanged_onwards_tells_the_other_too():
    """By hand: the first of four layers has the weights of the second, and so may that of the
    third; or it has those of the first.
    """
    graph = graph_of(NAME)
    known = hypotheses([one for one in catalogue() if one.id == "layers-swapped"], graph)
    (after,) = (one for one in known if one.variant == "layer i has i + 1")
    layers = [[n for n, call in enumerate(graph.calls) if call.layer == one] for one in (0, 1)]
    here = dict(zip(*layers, strict=True))
    atoms = frozenset([Atom(after, after.calls & {*layers[0]})])
    found = [*moved(atoms, here, known, graph)]
    variants = [[atom.hypothesis.variant for atom in one] for one in found]
    assert variants == [["layer i has i + 1"], ["layer i has i - 1"]]
    assert all(atom.calls <= {*layers[1]} for one in found for atom in one)
