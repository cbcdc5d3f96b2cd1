"""Whether all bugs that were named do together what one does whose class is not known."""

from collections.abc import Iterator
from itertools import islice, product
from typing import Any

from lockstep.parity.explaining.said.naming import PLAIN
from lockstep.parity.explaining.searching.hypothesis import Atom
from lockstep.parity.graph import Graph
from tests.proof.combos import moved
from tests.proof.run.alike import computed, fitted, of_class, sides
from tests.proof.run.case import Case
from tests.proof.run.places import Places
from tests.proof.run.planted import at

MOST = 256  # ways to read what was said


def are_one(case: Case, diagnosis: Any, granularity: str, places: Places) -> bool:
    """Say whether what was named, in the layers where it was, makes the port's dump in our own
    graph. It is asked in float32.
    """
    truth, _, near = sides(case, granularity, places)
    for atoms in islice(said(case, diagnosis, places), MOST):
        found = computed(case, atoms, places)
        if found and moved(fitted(at(found, granularity), truth), truth) <= near:
            return True
    return False


def said(case: Case, diagnosis: Any, places: Places) -> Iterator[tuple[Atom, ...]]:
    """Yield the bugs as they were named: in each form that was not told apart, and each wherever it
    may be in those layers, or in one of their modules alone.
    """
    graph = places.graph(case.build, case.seed, case.length)
    yield from product(*(list(forms(bug, graph)) for bug in diagnosis.faults))


def forms(bug: Any, graph: Graph) -> Iterator[Atom]:
    """Yield how one bug may act that was named."""
    for one in of_class(bug.id, graph):
        modules: dict[str, set[int]] = {}
        for number in one.calls if one.variant in variants(bug) else ():
            call = graph.calls[number]
            if not bug.layers or call.layer in bug.layers:
                modules.setdefault(call.place, set()).add(number)
        parts = [frozenset(calls) for calls in modules.values()]
        for calls in dict.fromkeys([frozenset().union(*parts), *parts]):
            if calls:
                yield Atom(one, calls)


def variants(bug: Any) -> set[str]:
    told = (bug.variant or "").split(" or ")
    return {"" if one == PLAIN else one for one in told}
