"""Whether two bugs are truly one in a port: the dumps that they give are the same."""

from collections.abc import Iterator
from dataclasses import replace

from lockstep.parity.explaining.hypothesis import Atom, Hypothesis, atoms_in, hypotheses, rewritten
from lockstep.parity.faults import catalogue
from lockstep.parity.graph import Graph
from tests.proof import ports
from tests.proof.combos import Dump, moved
from tests.proof.registry import applicable, named
from tests.proof.run.case import Case
from tests.proof.run.places import Places
from tests.proof.run.planted import at, dump, from_graph
from tests.proof.selfcheck import ALIKE

ROUNDING = 2e-6  # of a tap's deviation: two ways to compute the same in float32
FLOORS = 2  # times as far as our own right graph is from the right port
FARTHEST = 1e-4  # that this may be: beyond it, a router was turned


def are_alike(case: Case, bug: str, id: str, granularity: str, places: Places) -> bool:
    """Say whether any variant of a class, in a bug's place, gives the dump of the case.

    It is asked in float32, of the ports first, then of our own graph with the bug alone.
    """
    if case.kind != "own" and planted_alike(case, bug, id, granularity, places):
        return True
    alone = replace(case, bugs=(bug,))
    truth = at(dump(alone, places, dtype="float32"), granularity)
    right = at(dump(alone, places, (), dtype="float32"), granularity)
    floor = min(of_ours(alone, granularity, places, right), FARTHEST)
    near = tolerance(truth, right) + FLOORS * floor
    found = dumps_of(alone, id, places, truth)
    return any(moved(at(one, granularity), truth) <= near for one in found)


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


def tolerance(truth: Dump, right: Dump) -> float:
    return max(ALIKE * moved(truth, right), ROUNDING)


def of_ours(case: Case, granularity: str, places: Places, right: Dump) -> float:
    """Return how far our own graph, with nothing wrong, is from the port without bugs."""
    if case.kind == "own":
        return 0.0
    graph = places.graph(case.build, case.seed, case.length)
    return moved(at(from_graph(case, places, graph, {}, "float32", right), granularity), right)


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
    for one in hypotheses([fault for fault in catalogue() if fault.id == id], graph):
        for atom in scopes(one, graph):
            calls = rewritten([atom], graph)
            try:
                found = calls and from_graph(case, places, graph, calls, "float32", truth)
            except ValueError:  # shapes that this model does not have
                continue
            if found and truth.keys() & found.keys() == truth.keys() & graph.taps.keys():
                yield found
