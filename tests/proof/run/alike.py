"""Whether two bugs are truly one in a port: the dumps that they give are the same."""

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from lockstep.parity.explaining.searching.hypothesis import (
    Atom,
    Hypothesis,
    atoms_in,
    hypotheses,
    rewritten,
)
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Graph
from tests.proof import ports
from tests.proof.combos import Dump, distances, moved
from tests.proof.registry import applicable, named
from tests.proof.run.case import Case
from tests.proof.run.places import Places
from tests.proof.run.planted import at, dump, from_graph
from tests.proof.selfcheck import ALIKE

ROUNDING = 2e-6  # of a tap's deviation: two ways to compute the same in float32
FLOORS = 2  # times as far as our own right graph is from the right port
FARTHEST = 1e-4  # that this may be: beyond it, a router was turned
MOSTLY = 0.5  # of the tokens that a bug moves must go where it leads


def are_alike(case: Case, bug: str, id: str, granularity: str, places: Places) -> bool:
    """Say whether any variant of a class, in a bug's place, gives the dump of the case.

    It is asked in float32, of the ports first, then of our own graph with the bug alone, then of
    our own graph with the other bugs beside it.
    """
    if case.kind != "own" and planted_alike(case, bug, id, granularity, places):
        return True
    return alone_alike(case, bug, id, granularity, places) or (
        alike_beside(case, bug, id, granularity, places)
    )


def alone_alike(case: Case, bug: str, id: str, granularity: str, places: Places) -> bool:
    """Ask our own graph with the bug alone."""
    alone = replace(case, bugs=(bug,))
    truth, _, near = sides(alone, granularity, places)
    found = dumps_of(alone, id, places, truth)
    return any(moved(fitted(at(one, granularity), truth), truth) <= near for one in found)


def alike_beside(case: Case, bug: str, id: str, granularity: str, places: Places) -> bool:
    """Ask our own graph with every bug of the case in it, and with the class in one's place.

    Each bug is enacted there as it shows in the port when it is alone.
    """
    enacted: list[Atom] = []
    for name in sorted(case.bugs, key=lambda name: name != bug):
        atom = enacting(case, name, granularity, places)
        if atom is None:
            return False
        enacted.append(atom)
    others = enacted[1:]
    truth = computed(case, enacted, places)
    found = (computed(case, [*others, atom], places) for atom in acting(case, id, places))
    return any(
        truth and one and moved(at(one, granularity), at(truth, granularity)) <= ROUNDING
        for one in found
    )


def enacting(case: Case, bug: str, granularity: str, places: Places) -> Atom | None:
    """Return what of the catalogue does in our own graph what a bug alone does in the port."""
    alone = replace(case, bugs=(bug,))
    truth, right, near = sides(alone, granularity, places)
    graph = places.graph(case.build, case.seed, case.length)
    led = [tap for tap, far in distances(truth, right).items() if far > near and tap in graph.taps]
    first = min(led, key=graph.taps.__getitem__, default=None)
    if first is None:
        return None
    for atom in acting(case, bug.partition(" (")[0], places):
        begun = computed(case, [atom], places, only=first)
        if not begun or moved(fitted(begun, truth), {first: truth[first]}) > near:
            continue
        found = computed(case, [atom], places)
        if found and follows(fitted(found, truth), truth, right, near):
            return atom
    return None


def follows(found: Dump, truth: Dump, right: Dump, near: float) -> bool:
    """Say whether a dump goes where a bug leads, in most tokens: a router may turn some."""
    led = [tap for tap, far in distances(truth, right).items() if far > near and tap in found]
    if not led or any(found[tap].shape != truth[tap].shape for tap in led):
        return False
    with np.errstate(all="ignore"):
        off = [
            np.sqrt(np.mean((found[tap].astype(np.float64) - truth[tap]) ** 2, axis=-1)).ravel()
            / (truth[tap].std() or 1)
            for tap in led
        ]
    return bool(np.mean(np.concatenate(off) <= near) > MOSTLY)


def acting(case: Case, id: str, places: Places) -> Iterator[Atom]:
    """Yield a class in any of its variants, wherever it may act."""
    graph = places.graph(case.build, case.seed, case.length)
    for one in of_class(id, graph):
        yield from scopes(one, graph)


def of_class(id: str, graph: Graph) -> Iterator[Hypothesis]:
    """Yield the variants of a class, each with its place in the catalogue: bugs compose by that."""
    for place, fault in enumerate(catalogue()):
        if fault.id == id:
            yield from (replace(one, order=place) for one in hypotheses([fault], graph))


def computed(
    case: Case, atoms: Collection[Atom], places: Places, only: str | None = None
) -> Dump | None:
    """Return what our own graph dumps with some bugs; None if they cannot all be there."""
    graph = places.graph(case.build, case.seed, case.length)
    calls = rewritten(atoms, graph)
    try:
        return from_graph(case, places, graph, calls, "float32", only=only) if calls else None
    except ValueError:  # shapes that this model does not have
        return None


def planted_alike(case: Case, bug: str, id: str, granularity: str, places: Places) -> bool:
    """Ask the ports in which the class is planted in the bug's place, beside the others."""
    others = [name for name in case.bugs if name != bug]
    folder, adapter = places.folder(case.build, case.seed)
    sites = {named(name).site for name in others}
    variants = [
        one.name
        for one in applicable(ports.subject(folder, adapter=adapter))
        if one.id == id and one.site not in sites
    ]
    if not variants:
        return False
    truth = at(dump(case, places, dtype="float32"), granularity)
    near = tolerance(truth, at(dump(case, places, others, dtype="float32"), granularity))
    found = (dump(case, places, [*others, one], dtype="float32") for one in variants)
    return any(moved(at(one, granularity), truth) <= near for one in found)


def sides(case: Case, granularity: str, places: Places) -> tuple[Dump, Dump, float]:
    """Return the dumps of a port and of the right one, in float32, and how near to the first one a
    dump of our own graph is that is the same.
    """
    truth, right = (
        at(dump(case, places, bugs, dtype="float32"), granularity) for bugs in (None, ())
    )
    return truth, right, tolerance(truth, right, floor_of(case, granularity, places, right))


def tolerance(truth: Dump, right: Dump, floor: float = 0.0) -> float:
    return max(ALIKE * moved(truth, right), ROUNDING) + FLOORS * floor


def floor_of(case: Case, granularity: str, places: Places, right: Dump) -> float:
    """Return how far our own right graph may be from the right port."""
    return min(of_ours(case, granularity, places, right), FARTHEST)


def of_ours(case: Case, granularity: str, places: Places, right: Dump) -> float:
    """Return how far our own graph, with nothing wrong, is from the port without bugs."""
    if case.kind == "own":
        return 0.0
    graph = places.graph(case.build, case.seed, case.length)
    ours = at(from_graph(case, places, graph, {}, "float32", right), granularity)
    return moved(fitted(ours, right), right)


def fitted(found: Dump, like: Dump) -> Dump:
    """Return our dump in the port's shapes: a router's module drops the axis of the batch."""
    return {
        tap: value.reshape(like[tap].shape)
        if tap in like and value.size == like[tap].size
        else value
        for tap, value in found.items()
    }


def scopes(one: Hypothesis, graph: Graph) -> Iterator[Atom]:
    """Yield where a bug may act: as `explain` has it, and in one module of one layer."""
    yield from atoms_in(one, range(len(graph.calls)), (), graph)
    modules: dict[tuple[str, int | None], set[int]] = {}
    for number in one.calls:
        call = graph.calls[number]
        modules.setdefault((call.place, call.layer), set()).add(number)
    yield from (Atom(one, frozenset(calls)) for calls in modules.values())


def dumps_of(case: Case, id: str, places: Places, truth: Dump) -> Iterator[Dump]:
    """Yield what our own graph dumps with a class in any of its variants, and wherever it acts."""
    graph = places.graph(case.build, case.seed, case.length)
    for one in of_class(id, graph):
        for atom in scopes(one, graph):
            calls = rewritten([atom], graph)
            try:
                found = from_graph(case, places, graph, calls, "float32", truth) if calls else None
            except ValueError:  # shapes that this model does not have
                continue
            if found and truth.keys() & found.keys() == truth.keys() & graph.taps.keys():
                yield found
