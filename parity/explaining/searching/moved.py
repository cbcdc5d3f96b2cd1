"""What explains one layer, as it would act in another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, composed, in_order
from lockstep.parity.graph import Call, Graph
from lockstep.parity.graph.graph import Piece


def moved(
    atoms: Atoms, here: Mapping[int, int], every: Iterable[Hypothesis], graph: Graph
) -> Iterator[Atoms]:
    """Yield the same bugs in the calls of another layer, as far as they can be there.

    Of two layers that were exchanged one has the weights of the next, the other those of the last.
    So a bug that cannot be there, or that reads what this layer should, is told by that one of
    `every` bug which reads what it lost.
    """
    found = {
        atom: atom.hypothesis.calls & {here[n] for n in atom.calls if n in here} for atom in atoms
    }
    same = {atom: Atom(atom.hypothesis, calls) for atom, calls in found.items() if calls}
    yield frozenset(same.values())
    there = frozenset(here.values())
    for one in every:
        for atom in (atom for atom in in_order(atoms) if gives_back(one, atom, here, graph)):
            if atom in same and not reads_from(atom, here, graph):
                continue
            rest = (moved for other, moved in same.items() if other is not atom)
            yield frozenset(rest) | {Atom(one, one.calls & there)}


def reads_from(atom: Atom, here: Mapping[int, int], graph: Graph) -> bool:
    """Say whether a bug of another layer reads tensors that calls here should."""
    both = ((number, here[number]) for number in atom.calls if number in here)
    return any(reads_as(atom.hypothesis, there, number, graph) for there, number in both)


def gives_back(one: Hypothesis, lost: Atom, here: Mapping[int, int], graph: Graph) -> bool:
    """Say whether a bug reads tensors here that the other layer reads no more."""
    if one.id != lost.hypothesis.id or one.paired:
        return False
    both = ((number, here[number]) for number in lost.calls if here.get(number) in one.calls)
    return any(reads_as(one, number, there, graph) for there, number in both)


def reads_as(one: Hypothesis, number: int, other: int, graph: Graph) -> bool:
    """Say whether a call with a bug reads the tensors that another call should."""
    call = composed(graph, number, (one,))
    return call is not None and tensors(call) == tensors(graph.calls[other]) != []


def tensors(call: Call) -> list[str]:
    found = (call.tensor(index) for index in range(len(call.inputs)))
    return [tensor for tensor in found if tensor is not None]


def in_same_modules(atoms: Atoms, piece: Piece, graph: Graph) -> Atoms:
    """Return the same bugs in the modules of another piece, as far as it has them."""

    def here(atom: Atom) -> frozenset[int]:
        places = {graph.calls[number].place for number in atom.calls}
        inside = atom.hypothesis.calls & frozenset(piece.calls)
        return frozenset(number for number in inside if graph.calls[number].place in places)

    found = (Atom(atom.hypothesis, here(atom)) for atom in atoms)
    return frozenset(atom for atom in found if atom.calls)
