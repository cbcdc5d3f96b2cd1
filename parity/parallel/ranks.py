"""The dumps of all ranks of one run, under the names of taps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np

from lockstep.parity.dumps.dtype import computed_in
from lockstep.parity.dumps.dump import Dump
from lockstep.parity.dumps.fed import check_told
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.naming.align import Alignment
from lockstep.parity.naming.names import parted, step_of
from lockstep.parity.naming.plan import aligned
from lockstep.reference.checkpoint.errors import InputError

COMPUTED = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Ranks:
    """What each rank dumped, in their order."""

    sides: tuple[Alignment, ...]

    def wrote(self, tap: str) -> list[int]:
        """Return the ranks that dumped a tap."""
        return [rank for rank, side in enumerate(self.sides) if tap in side.names]

    def read(self, tap: str, rank: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return a rank's tensor in `shape`, or as it was dumped if no move leads there.

        A batch axis is added all the same: a part of a value may have been dumped, or all of it.
        """
        found = self.sides[rank].read(tap, shape)
        return found[None] if found.ndim == len(shape) - 1 else found

    @property
    def names(self) -> list[str]:
        """All taps that a rank dumped, in the order of the first that did."""
        return list(dict.fromkeys(name for side in self.sides for name in side.names))

    @property
    def steps(self) -> int:
        """How many steps behind the prompt are dumped."""
        return max(map(step_of, self.names), default=0)

    @property
    def plan(self) -> list[str]:
        """Return what was done to make the dumps comparable; what holds for all is said once."""
        plans = [side.plan for side in self.sides]
        if all(plan == plans[0] for plan in plans):
            return plans[0]
        return [f"rank {rank}: {line}" for rank, plan in enumerate(plans) for line in plan]


def ranks_of(
    dumps: Sequence[Dump],
    known: Sequence[dict[str, tuple[int, ...]]],
    names: str | Path | None,
) -> Ranks:
    """Align every rank's dump with the taps that a rank has, `known` with their shapes."""
    pairs = zip(dumps, known, strict=True)
    return Ranks(tuple(aligned(dump, taps, names) for dump, taps in pairs))


def prompt_of(dumps: Sequence[Dump], given: Sequence[int] | None) -> list[int]:
    """Return the one prompt of all ranks.

    Raises: InputError if nobody says it, two say different ones, a rank says another one than is
    given, or it is a batch.
    """
    if any(dump.batch is not None for dump in dumps):
        raise InputError(dumps[0].path, "is of a batch, but ranks are compared for one prompt")
    said = {tuple(dump.tokens): rank for rank, dump in enumerate(dumps) if dump.tokens is not None}
    if given is not None:
        for dump in dumps:
            check_told(dump, given)
        said = {tuple(given): -1}
    if len(said) > 1:
        first, other = list(said.values())[:2]
        what = f"rank {first} and rank {other} say different prompts"
        raise InputError(dumps[other].path, what, "tokens")
    if not said or not next(iter(said)):
        raise InputError(dumps[0].path, "does not say its prompt: give --tokens")
    return list(next(iter(said)))


def fed_of(dumps: Sequence[Dump], steps: int) -> tuple[list[list[int]], str]:
    """Return what all ranks were fed in each step, up to where they part; say where that is.

    Raises: InputError if steps are dumped of which nobody says what was fed, or a rank that says
    it of some does not say it of all.
    """
    told = [dump for dump in dumps if dump.fed]
    if steps and not told:
        what = f"holds step {steps}, but does not say what was fed: put it into decoded"
        raise InputError(dumps[0].path, what, "__metadata__")
    for dump in told:
        if len(dump.fed) < steps:
            what = f"says what was fed in {len(dump.fed)} of {steps} steps: put all into decoded"
            raise InputError(dump.path, what, "__metadata__")
    rows = list(zip(*(dump.fed[:steps] for dump in told), strict=True))
    alike = [row[0] for row in takewhile(lambda row: all(one == row[0] for one in row), rows)]
    if len(alike) == len(rows):
        return alike, ""
    ids = ", ".join(",".join(map(str, one)) for one in rows[len(alike)])
    place = f"the ranks chose {ids}, but should choose one token: no later step is compared"
    return alike, place


def dtype_of(dumps: Sequence[Dump]) -> tuple[str, list[str]]:
    """Return the coarsest dtype that a rank computed in, and how that was found out."""
    found = [computed_in(dump) for dump in dumps]
    lines = [f"rank {rank}: {why}" for rank, (_, why) in enumerate(found) if why]
    names = [name for name, _ in found if name in COMPUTED] or ["float32"]
    return max(names, key=EPSILONS.__getitem__), lines


def path_in(tap: str) -> str:
    """Return a tap without the step before it."""
    return parted(tap)[1]
