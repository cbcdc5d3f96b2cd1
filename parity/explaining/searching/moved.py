"""What explains one layer, as it would act in another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, composed
from lockstep.parity.graph import Call, Graph
from lockstep.parity.graph.graph import Piece


def moved(
    atoms: Atoms, here: Mapping[int, int], every: Iterable[Hypothesis], graph: Graph
) -> Iterator[Atoms]:
    """Yield the same bugs in the calls of another layer, as far as they can be there.

    Of two layers that were exchanged one has the weights of the next, the other those of the last.
    So a bug that cannot be there is told by that one of `every` bug which reads what it lost.
    """
    found = {
        atom: atom.hypothesis.calls & {here[n] for n in atom.calls if n in here} for atom in atoms
    }
    same = frozenset(Atom(atom.hypothesis, calls) for atom, calls in found.items() if calls)
    yield same
    lost = [atom for atom, calls in found.items() if not calls]
    there = frozenset(here.values())
    for one in every if lost else ():
        if any(gives_back(one, atom, here, graph) for atom in lost):
            yield same | {Atom(one, one.calls & there)}


def gives_back(one: Hypothesis, lost: Atom, here: Mapping[int, int], graph: Graph) -> bool:
    """Say whether a bug reads tensors here that the other layer reads no more."""
    if one.id != lost.hypothesis.id or one.paired:
        return False
    both = ((number, here[number]) for number in lost.calls if here.get(number) in one.calls)
    calls = ((graph.calls[number], composed(graph, there, (one,))) for number, there in both)
    return any(call is not None and tensors(call) == tensors(right) != [] for right, call in calls)


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
