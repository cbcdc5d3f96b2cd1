"""Whether two bugs are truly one in a port: the dumps that they give are the same."""

from collections.abc import Iterator

from lockstep.parity.explaining.hypothesis import atoms_in, hypotheses, rewritten
from lockstep.parity.faults import catalogue
from tests.proof import ports
from tests.proof.combos import Dump, moved
from tests.proof.registry import applicable, named
from tests.proof.run.case import Case
from tests.proof.run.places import Places
from tests.proof.run.planted import at, dump, from_graph
from tests.proof.selfcheck import ALIKE

ROUNDING = 2e-6  # of a tap's deviation: two ways to compute the same in float32


def are_alike(case: Case, bug: str, id: str, granularity: str, places: Places) -> bool:
    """Say whether any variant of a class, in a bug's place, gives the dump of the case.

    It is asked in float32: of the ports, where the class is planted in them, else of our own graph.
    """
    others = [name for name in case.bugs if name != bug]
    truth = at(dump(case, places, dtype="float32"), granularity)
    right = at(dump(case, places, others, dtype="float32"), granularity)
    near = max(ALIKE * moved(truth, right), ROUNDING)
    if case.kind != "own":
        folder, adapter = places.folder(case.build, case.seed)
        known = applicable(ports.subject(folder, adapter=adapter))
        sites = {named(name).site for name in others}
        variants = [one.name for one in known if one.id == id and one.site not in sites]
        for variant in variants:
            found = at(dump(case, places, [*others, variant], dtype="float32"), granularity)
            if moved(found, truth) <= near:
                return True
        if others:
            return False
    return any(
        moved(at(found, granularity), truth) <= near for found in dumps_of(case, id, places, truth)
    )


def dumps_of(case: Case, id: str, places: Places, truth: Dump) -> Iterator[Dump]:
    """Yield what our own graph dumps with a class in any of its variants, and wherever it acts."""
    graph = places.graph(case.build, case.seed, case.length)
    every = range(len(graph.calls))
    for one in hypotheses([fault for fault in catalogue() if fault.id == id], graph):
        for atom in atoms_in(one, every, (), graph):
            calls = rewritten([atom], graph)
            try:
                found = calls and from_graph(case, places, graph, calls, "float32", truth)
            except ValueError:  # shapes that this model does not have
                continue
            if found and truth.keys() & found.keys() == truth.keys() & graph.taps.keys():
                yield found
