"""What is made of a value, dumped under the value's own name: read as what it is.

llama.cpp names queries anew once they have turned, and the last name stays; a module may add the
stream itself; an activation may work in place. What the port computes next is computed from the
later value then, so this is no bug.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.behind_the_cap import is_right
from lockstep.parity.explaining.conventions.readings import takers_of
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.steps.steps import Joined
from lockstep.parity.faults.activations import ANY
from lockstep.parity.faults.rewrites import NORMS
from lockstep.parity.graph import Graph
from lockstep.parity.judging.metrics import difference, rms
from lockstep.parity.naming.grouping import grouped, kind

THROUGH = {"split_heads", "heads_first", "rope", "add", "gain", "scale", *NORMS, *ANY}
NEAR, SAME = 0.1, 1e-6  # of a value, within which another is like it, and within which it is it
CLEARLY = 2.0  # times as near must be what the port computed next
SAID = "{taps}: what was made of it, as its values say, and read as {later}"


def dumped_late(case: Case) -> tuple[Joined, list[str]]:
    """Return where the taps are with such values under the names of what they are, and a line."""
    found = dict(candidates(case))
    other = of_moved(case, found) if found else case
    kept = {tap: later for tap, later in found.items() if is_meant(tap, later, case, other)}
    if not kept:
        return case.sides, []
    kinds: dict[str, list[str]] = {}
    for tap, later in kept.items():
        kinds.setdefault(kind(later), []).append(tap)
    lines = [
        SAID.format(taps=grouped(taps), later=grouped([kept[tap] for tap in taps]))
        for taps in kinds.values()
    ]
    return moved(case.sides, kept), lines


def candidates(case: Case) -> Iterator[tuple[str, str]]:
    """Yield the taps whose values are unlike themselves, and like what is made of them.

    What was read anew is what the next one is computed from. A kind that is not so in its first
    layer is so in none.
    """
    graph, trial = case.graph, case.trial
    others: set[str] = set()
    for tap in sorted(case.sides.names.keys() & graph.taps.keys(), key=graph.taps.__getitem__):
        number = graph.taps[tap]
        if number not in case.dumped or not graph.judges(number) or kind(tap) in others:
            continue
        if not any(made_of(number, graph)):
            continue
        right = trial.centre(None).target(number)
        made = trial.over({number: right})
        later = None if is_near(case.dumped[number], right, NEAR) else like(tap, made, case)
        if later is None:
            others.add(kind(tap))
        else:
            trial = made.over({graph.taps[later]: read_as(later, tap, case)})
            yield tap, later


def like(tap: str, made: Trial, case: Case) -> str | None:
    """Return the tap of what is made of a right value, if the port's is like that."""
    numbers, run = case.graph.taps, made.centre(None)
    return next(
        (later for later in made_of(numbers[tap], case.graph)
         if is_near(read_as(later, tap, case), run.target(numbers[later]), NEAR)),
        None,
    )  # fmt: skip


def made_of(number: int, graph: Graph) -> Iterator[str]:
    """Yield the taps of what is made of a value in its layer, one small step after the other."""
    waiting, size = [number], np.prod(graph.shapes[number])
    while waiting:
        for taker in graph.consumers[waiting.pop(0)]:
            call = graph.calls[taker]
            if call.op in THROUGH and call.layer == graph.calls[number].layer is not None:
                yield from call.taps[:1] if np.prod(graph.shapes[taker]) == size else ()
                waiting.append(taker)


def of_moved(case: Case, found: Mapping[str, str]) -> Case:
    sides = moved(case.sides, found)
    other = Case(case.model, case.graph, sides, case.dtype, [*case.faults.values()])
    sides.moved.clear()  # the case that is made of them counts anew
    return other


def moved(sides: Joined, found: Mapping[str, str]) -> Joined:
    """Return where the taps are with some under later names; a later one that is there stays."""
    known = {tap: tap for tap in sides.names if tap not in found}
    known |= {later: tap for tap, later in found.items() if later not in known}
    return replace(
        sides,
        names={later: sides.names[tap] for later, tap in known.items()},
        parts={later: sides.parts[tap] for later, tap in known.items() if tap in sides.parts},
        last=frozenset(later for later, tap in known.items() if tap in sides.last),
    )


def is_meant(tap: str, later: str, case: Case, other: Case) -> bool:
    """Say whether a value is the later one: it is right so, and so is what was computed next."""
    number = case.graph.taps[later]
    if later in case.sides.names:
        return is_near(read_as(later, tap, case), case.dumped[number], SAME)
    if not is_right(other, later):
        return False
    for piece in takers_of(number, other.trial):
        if other.trial.judge(piece).passed:
            return True
        before, after = (one.trial.look(piece, {}).raw(0, None) for one in (case, other))
        if max(before, after) > CLEARLY * min(before, after):
            return after < before
    return False


def read_as(later: str, tap: str, case: Case) -> np.ndarray:
    """Return what is dumped under a tap, in the shape of a later one."""
    names = {one: name for one, name in case.sides.names.items() if one != later}
    alone = moved(replace(case.sides, names=names), {tap: later})
    return alone.read(later, case.graph.shapes[case.graph.taps[later]])


@np.errstate(all="ignore")  # a broken port may hold anything
def is_near(value: np.ndarray, other: np.ndarray, near: float) -> bool:
    if value.shape != other.shape:
        return False
    return bool(rms(difference(value, other)) <= near * rms(other))
