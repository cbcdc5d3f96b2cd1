"""What two bugs do together, in a port and as the catalogue composes them.

`python -m tests.proof.run.pairs BUILD` plants every two bugs of a build, of sites of their own, and
holds its layers in float32 to our own graph with both: in any forms of the catalogue of which each
alone gives the layers of the port with that bug alone. It prints the pairs that come out otherwise.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product

import numpy as np

from lockstep.parity.explaining.searching.hypothesis import Atom
from tests.proof import builds, ports
from tests.proof.combos import Dump, moved
from tests.proof.registry import applicable, named
from tests.proof.run.alike import acting, computed, fitted, floor_of, tolerance
from tests.proof.run.case import Case
from tests.proof.run.places import Places
from tests.proof.run.planted import at, dump
from tests.proof.run.workers import PLACES, prepare

LAYERS = "layers"


@dataclass
class Pairs:
    """The bugs of one build, and the forms in which our own graph has them."""

    places: Places
    build: str
    seed: int
    length: int = builds.SHORT

    @property
    def right(self) -> Case:
        return Case(
            "combination", self.build, self.seed, "float32", "eager", (), (LAYERS,), self.length
        )

    def taken(self, *bugs: str) -> Dump:
        case = replace(self.right, bugs=bugs)
        return at(dump(case, self.places, dtype="float32"), LAYERS)

    @cached_property
    def plain(self) -> Dump:
        return self.taken()

    @cached_property
    def floor(self) -> float:
        return floor_of(self.right, LAYERS, self.places, self.plain)

    def gives(self, atoms: list[Atom], truth: Dump) -> bool:
        """Say whether our own graph has a port's layers with some bugs."""
        with np.errstate(all="ignore"):  # a broken port overflows
            found = computed(self.right, atoms, self.places)
        near = tolerance(truth, self.plain, self.floor)
        return found is not None and moved(fitted(at(found, LAYERS), truth), truth) <= near

    def forms(self, bug: str) -> list[Atom]:
        """Return the forms of a bug's class that alone give what the bug does."""
        truth = self.taken(bug)
        every = acting(self.right, bug.partition(" (")[0], self.places)
        return [atom for atom in every if self.gives([atom], truth)]

    def bugs(self) -> list[str]:
        folder, adapter = self.places.folder(self.build, self.seed)
        every = applicable(ports.subject(folder, adapter=adapter))
        return [one.name for one in every if "float32" in one.dtypes and not one.benign]

    def composed(self, one: list[Atom], other: list[Atom], truth: Dump) -> bool:
        return any(self.gives([*both], truth) for both in product(one, other))


def compared(pairs: Pairs, minutes: float) -> Iterator[tuple[str, str, bool]]:
    """Yield two bugs at a time, in random order, and whether they come out as in the port."""
    forms = {bug: pairs.forms(bug) for bug in pairs.bugs()}
    known = [bug for bug in forms if forms[bug]]
    every = [two for two in combinations(known, 2) if len({named(bug).site for bug in two}) == 2]
    random.Random(pairs.seed).shuffle(every)
    until = time.monotonic() + 60 * minutes
    for one, other in every:
        if time.monotonic() > until:
            return
        truth = pairs.taken(one, other)
        if all(np.isfinite(value).all() for value in truth.values()):
            yield one, other, pairs.composed(forms[one], forms[other], truth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", help="of tests/proof/builds.py, or with an adapter: qwen3+lora")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000, 2**31))
    parser.add_argument("--minutes", type=float, default=60.0)
    asked = parser.parse_args()
    prepare(tempfile.mkdtemp())
    tried = off = 0
    for one, other, same in compared(Pairs(PLACES[0], asked.build, asked.seed), asked.minutes):
        tried, off = tried + 1, off + (not same)
        if not same:
            print(f"{one}  |  {other}", flush=True)
    print(f"{asked.build}, seed {asked.seed}: {off} of {tried} pairs come out otherwise")


if __name__ == "__main__":
    main()
