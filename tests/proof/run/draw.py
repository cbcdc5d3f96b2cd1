"""What is drawn: every case that the options ask for, in an order that is fair from the start."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.parity.explaining.searching.hypothesis import hypotheses
from lockstep.parity.faults import catalogue
from tests.proof import builds, combos, ports
from tests.proof.registry import Bug, applicable, every_bug
from tests.proof.run.case import KINDS, Case
from tests.proof.run.places import Places

ATTENTIONS = ("eager", "sdpa")
SIZES = (2, 3, 5, 7, 10)
LENGTHS = (6, builds.SHORT, builds.LONG)  # the windows are of 8 tokens
FINE = ("modules", "layers")  # what all but singles are asked for from
# Of the time that a stopped run had; a kind that is done leaves its share to the others.
SHARES = {
    "single": 6, "logits": 1, "combination": 2, "without": 2, "own": 1, "benign": 1, "clean": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What a run was asked for."""

    seeds: Sequence[int]
    builds: Sequence[str]
    dtypes: Sequence[str]
    granularities: Sequence[str]
    kinds: Sequence[str] = KINDS
    weights: int = 10  # draws of weights for each clean port
    combinations: int = 2  # for each size, build, dtype and seed
    once: bool = False  # each bug in each build, its dtype and attention drawn
    ids: Sequence[str] = ()  # bugs of these classes alone, where they are alone; none means all


def every_case(asked: Asked, places: Places) -> list[Case]:
    """Return every case that was asked for, shuffled within its kind, the kinds in turn.

    The order depends on the seeds alone, so a run that goes on finds the same cases.
    """
    rng = random.Random(asked.seeds[0])
    kinds = {kind: [*MAKERS[kind](asked, places)] for kind in KINDS if kind in asked.kinds}
    for cases in kinds.values():
        rng.shuffle(cases)
    return [*in_turn(kinds)]


def in_turn(kinds: dict[str, list[Case]]) -> Iterator[Case]:
    """Yield cases so that every kind is at its share all along."""
    while any(kinds.values()):
        for kind, cases in kinds.items():
            for _ in range(min(SHARES[kind], len(cases))):
                yield cases.pop()


def ports_of(asked: Asked) -> Iterator[tuple[str, int, str]]:
    for build in asked.builds:
        for seed in asked.seeds:
            for dtype in asked.dtypes:
                yield build, seed, dtype


def exist(build: str, seed: int, dtype: str, places: Places) -> list[Bug]:
    """Return the bugs of a port; with an adapter those of adapters alone."""
    folder, adapter = places.folder(build, seed)
    found = applicable(ports.subject(folder, dtype=dtype, adapter=adapter))
    return [one for one in found if adapter is None or one.id.startswith(("lora", "dora"))]


def fine(asked: Asked) -> tuple[str, ...]:
    return tuple(one for one in asked.granularities if one in FINE)


def is_asked(id: str, asked: Asked) -> bool:
    return not asked.ids or id in asked.ids


def patched(
    asked: Asked,
    places: Places,
    kind: str,
    wanted: Iterable[Bug],
    granularities: tuple[str, ...] | None = None,
) -> Iterator[Case]:
    """Yield a case for each bug alone, where it exists."""
    names = {one.name for one in wanted if is_asked(one.id, asked)}
    granularities = fine(asked) if granularities is None else granularities
    if not granularities:
        return
    found: list[Case] = []
    for build, seed, dtype in ports_of(asked):
        for one in exist(build, seed, dtype, places):
            if one.name in names:
                length = builds.SHORT if one.prompt == "short" else builds.LONG
                for attention in ATTENTIONS:
                    port = (kind, build, seed, dtype, attention)
                    found.append(Case(*port, (one.name,), granularities, length))
    yield from each_once(found) if asked.once else found


def each_once(cases: Iterable[Case]) -> Iterator[Case]:
    """Yield one of the cases of each bug in each build, drawn by the first one's seed."""
    alike: dict[tuple[str, tuple[str, ...]], list[Case]] = {}
    for case in cases:
        alike.setdefault((case.build, case.bugs), []).append(case)
    for (build, bugs), some in alike.items():
        yield random.Random(f"{some[0].seed} {build} {bugs}").choice(some)


def nameable() -> list[Bug]:
    known = {fault.id for fault in catalogue()}
    return [one for one in every_bug() if one.id in known and not one.benign]


def singles(asked: Asked, places: Places) -> Iterator[Case]:
    return patched(asked, places, "single", nameable())


def logits(asked: Asked, places: Places) -> Iterator[Case]:
    if "logits" not in asked.granularities:
        return iter(())
    return patched(asked, places, "logits", nameable(), ("logits",))


def without(asked: Asked, places: Places) -> Iterator[Case]:
    bugs = [one for one in every_bug() if not one.benign and one.id not in conventions()]
    return patched(asked, places, "without", bugs)


def benign(asked: Asked, places: Places) -> Iterator[Case]:
    return patched(asked, places, "benign", [one for one in every_bug() if one.benign])


def conventions() -> set[str]:
    return {fault.id for fault in catalogue() if fault.convention}


def combinations(asked: Asked, places: Places) -> Iterator[Case]:
    """Draw bugs that can stand together; a build that has not enough of them is left out."""
    known = {fault.id for fault in catalogue()} - conventions()
    for number, (build, seed, dtype) in enumerate(ports_of(asked)):
        folder, adapter = places.folder(build, seed)
        subject = ports.subject(folder, dtype=dtype, adapter=adapter)
        bugs = [one for one in applicable(subject) if one.id in known]
        for size in SIZES if fine(asked) else ():
            rng = np.random.default_rng([seed, number, size])
            for turn in range(asked.combinations):
                try:
                    drawn = combos.draw(subject, size, rng, bugs=bugs)
                except ValueError:
                    break
                names = tuple(one.name for one in drawn)
                port = ("combination", build, seed, dtype, ATTENTIONS[turn % 2])
                yield Case(*port, names, fine(asked))


def own(asked: Asked, places: Places) -> Iterator[Case]:
    """Yield what no patch of torch enacts, as rewrites of our own graph."""
    patchable = {one.id for one in every_bug()} | conventions()
    rest = [
        fault for fault in catalogue() if fault.id not in patchable and is_asked(fault.id, asked)
    ]
    found: list[Case] = []
    for build in asked.builds:
        for seed in asked.seeds:
            graph = places.graph(build, seed, builds.LONG)
            for one in hypotheses(rest, graph) if fine(asked) else ():
                name = f"{one.id} ({one.variant})" if one.variant else one.id
                for dtype in asked.dtypes:
                    port = ("own", build, seed, dtype, "eager")
                    found.append(Case(*port, (name,), fine(asked)))
    yield from each_once(found) if asked.once else found


def clean(asked: Asked, places: Places) -> Iterator[Case]:
    """Draw a prompt, a batch, threads and how fine the dump is, for every port and its weights."""
    for build in asked.builds:
        for turn in range(asked.weights):
            seed = asked.seeds[turn % len(asked.seeds)] + turn // len(asked.seeds)
            rng = random.Random(f"{build} {seed}")
            for dtype in asked.dtypes:
                for attention in ATTENTIONS:
                    some = (rng.choice(asked.granularities),)
                    rest = (rng.choice(LENGTHS), rng.choice((1, 3)), rng.choice((1, 2)))
                    yield Case("clean", build, seed, dtype, attention, (), some, *rest)


MAKERS = {
    "single": singles,
    "logits": logits,
    "combination": combinations,
    "without": without,
    "own": own,
    "benign": benign,
    "clean": clean,
}
