"""A run that goes on from what the ranks dumped: each value is judged by its own inputs.

Every tap is computed from the port's own values, held against the port's, and the port's is what
the run goes on with. So an error is seen where it is made and nowhere else, however deep the model
is and whatever is wrong before it; and a wrong run, made the same way, shows which bug makes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from lockstep.parity.diffing.plain import judged_plainly
from lockstep.parity.judging.result import Tap
from lockstep.parity.parallel.compare import worst
from lockstep.parity.parallel.pieces import put_together, taken_apart
from lockstep.parity.parallel.ranks import Ranks, path_in
from lockstep.reference.checkpoint.parallel.rules import rule_of
from lockstep.reference.parallel.each import Each
from lockstep.reference.parallel.model import ParallelModel
from lockstep.reference.parallel.run import ParallelRun

PARTS = "dumped before the sum of the ranks"
GATHERED = "dumped before the ranks' parts are put behind each other"
WHOLE = "not dealt out: every rank has all of it"


class Forcing(ParallelRun):
    """A run that goes on with what its listener returns."""

    def tap(self, name: str, value: Any) -> Any:
        listener: Any = self.trace
        return value if listener is None else listener(name, value)


def forcing(run: type[ParallelRun]) -> type[ParallelRun]:
    """Return a kind of run that listens as `Forcing` does."""
    return type("Forced", (Forcing,) if run is ParallelRun else (run, Forcing), {})


@dataclass
class Judge:
    """Holds each value against what the ranks dumped of it, and returns what they dumped.

    `read_as` says of taps how they were read, where a port dumps them at another point.
    """

    ranks: Ranks
    dtype: str
    prefix: str = ""
    taps: list[Tap] = field(default_factory=list)
    read_as: dict[str, str] = field(default_factory=dict)
    apart: list[str] = field(default_factory=list)  # what all should have alike, and do not
    shapes: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)  # one if all alike
    homes: dict[int, set[int]] = field(default_factory=dict)  # of each rank: whose file it may be
    known: dict[bytes, Tap] = field(default_factory=dict)  # by what was held against what

    def __call__(self, name: str, value: Any) -> Any:
        tap = self.prefix + name
        wrote = self.ranks.wrote(tap)
        self.shapes[tap] = [one.shape for one in (value if isinstance(value, Each) else [value])]
        if not wrote:
            return value
        return self.own(tap, value) if isinstance(value, Each) else self.shared(tap, value, wrote)

    def own(self, tap: str, value: Each) -> Each:
        """Judge what ranks have of their own, each by itself."""
        held, uncut = [], []
        for rank, truth in enumerate(value):
            if rank not in self.ranks.wrote(tap):
                held.append(truth)
                continue
            port = self.ranks.read(tap, rank, truth.shape)
            if port.shape != truth.shape:
                uncut.append(port)
                port = self.cut(tap, value, rank, port)
            self.taps.append(self.judged(f"{tap} of rank {rank}", port, truth))
            self.look_for_home(tap, value, rank, port)
            held.append(gone_on(port, truth))
        if tap in self.read_as:
            self.look_for_others(tap, uncut)
        self.look_for_twins(tap, value, held)
        return Each(held)

    def look_for_home(self, tap: str, value: Each, rank: int, port: np.ndarray) -> None:
        """Note whose weights made a rank's part: its own, or those of others; of none of them
        where it was made of wrong inputs, which says nothing."""
        rule = rule_of(path_in(tap))
        if rule is None or rule.axis != "rows" or self.homes.get(rank) == {rank}:
            return
        before = self.homes.get(rank, {*range(len(value))})
        own = self.taps[-1].status == "ok"
        fit = {rank} if own and rank in before else {
            other for other in before - {rank} if port.shape == value[other].shape
            and self.judged(tap, port, value[other]).status == "ok"
        }  # fmt: skip
        if fit or own:
            self.homes[rank] = before & fit

    def look_for_others(self, tap: str, whole: Sequence[np.ndarray]) -> None:
        """Note where ranks have all of a value, which they should then have alike."""
        alike = [one for one in whole if one.shape == whole[0].shape]
        if any(self.judged(tap, one, whole[0]).status == "differs" for one in alike):
            self.apart.append(tap)

    def look_for_twins(self, tap: str, value: Each, held: Sequence[np.ndarray]) -> None:
        """Note where neighbours should have the same, as of key heads that they share."""
        for rank in range(1, len(value)):
            alike = np.array_equal(value[rank], value[rank - 1])
            if alike and self.judged(tap, held[rank], held[rank - 1]).status == "differs":
                self.apart.append(tap)

    def cut(self, tap: str, value: Each, rank: int, port: np.ndarray) -> np.ndarray:
        """Return a rank's own part of a value that it has all of; else the value as it is."""
        part = taken_apart(path_in(tap), port, value, rank)
        if part is None:
            return port
        self.read_as[tap] = WHOLE
        return part

    def shared(self, tap: str, value: Any, wrote: Sequence[int]) -> Any:
        """Judge what all ranks should have alike; parts of it are put together if that fits."""
        ports = [self.ranks.read(tap, rank, value.shape) for rank in wrote]
        found = [self.judged(tap, port, value) for port in ports]
        wrong = any(one.status == "differs" for one in found)
        if wrong and len(ports) == len(self.ranks.sides) and not self.alike(tap, ports):
            for read_as, whole in put_together(ports, value.shape):
                judged = self.judged(tap, whole, value)
                if judged.status == "ok":
                    self.taps.append(judged)
                    self.read_as[tap] = {"sum": PARTS, "behind": GATHERED}[read_as]
                    return self.summed(ports, gone_on(whole, value))
        self.taps += worst(found)
        held = Each(gone_on(port, value) for port in ports)
        if all(np.array_equal(one, held[0], equal_nan=True) for one in held):
            return held[0]
        if any(self.judged(tap, one, held[0]).status == "differs" for one in held):
            self.apart.append(tap)
        more = [held[0]] * (len(self.ranks.sides) - len(held))
        return Each([*held, *more]) if not more else held[0]

    def alike(self, tap: str, ports: Sequence[np.ndarray]) -> bool:
        """Tell whether all ranks have the same, as of a mean in the place of a sum: no parts."""
        return all(self.judged(tap, one, ports[0]).status == "ok" for one in ports[1:])

    def summed(self, ports: Sequence[np.ndarray], whole: np.ndarray) -> np.ndarray:
        """Return what a run goes on with where parts were dumped."""
        return whole

    def judged(self, name: str, port: np.ndarray, truth: np.ndarray) -> Tap:
        """Judge two values; a wrong run makes most of what the right one makes, to the bit."""
        said = f"{name} {port.dtype} {port.shape} {truth.dtype} {truth.shape}"
        digest = blake2b(said.encode(), digest_size=16)
        for one in (port, truth):
            digest.update(np.ascontiguousarray(one).view(np.uint8).data)
        key = digest.digest()
        if key not in self.known:
            self.known[key] = judged_plainly(name, port, truth, self.dtype)
        return self.known[key]


def gone_on(port: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return what a run goes on with: the port's value if it can be one."""
    fits = port.shape == truth.shape and port.dtype.kind not in "iubc"
    with np.errstate(all="ignore"):
        return port.astype(truth.dtype) if fits else truth


def judged_run(
    model: ParallelModel,
    ranks: Ranks,
    passes: Sequence[Sequence[int]],
    before: Judge | None = None,
    judge: Judge | None = None,
) -> Judge:
    """Judge every tap of every rank, in the order of the forward pass.

    `passes` has what was fed in the prompt and in each step. What another run was judged by
    `before` is not judged again.
    """
    judge, cache = judge or Judge(ranks, model.dtype), model.make_cache()
    judge.known = {} if before is None else before.known
    other = model.with_parts(run=forcing(model.together))
    with np.errstate(all="ignore"):
        for step, fed in enumerate(passes):
            judge.prefix = f"step.{step}/" if step else ""
            other.forward(np.array([[*fed]]), cache=cache, trace=judge)  # pyright: ignore[reportArgumentType]
    return judge


def readings(judge: Judge) -> list[str]:
    """Return a line for each way in which taps were read."""
    kinds: dict[str, Counter[str]] = {}
    for tap, how in judge.read_as.items():
        kinds.setdefault(how, Counter())[path_in(tap).rpartition(".")[2]] += 1
    return [f"{', '.join(count)}: {how}, in {sum(count.values())} taps"
            for how, count in kinds.items()]  # fmt: skip


def moved(judge: Judge) -> list[str]:
    """Say of which ranks a file is that of another: all that it made is what that one makes."""
    return [
        f"the file of rank {rank} is of rank {min(homes)}: its taps are what that one makes"
        for rank, homes in sorted(judge.homes.items())
        if homes and rank not in homes
    ]


def failing(taps: Sequence[Tap]) -> dict[str, Tap]:
    """Return the taps that differ, each by its name without the rank; the worst rank's."""
    found: dict[str, Tap] = {}
    for tap in taps:
        if tap.status == "differs":
            name = base(tap.name)
            before = found.get(name)
            if before is None or size(tap) > size(before):
                found[name] = replace(tap, name=name)
    return found


def passing(taps: Sequence[Tap]) -> set[str]:
    """Return the taps that are right on every rank that has them."""
    return {base(tap.name) for tap in taps if tap.status == "ok"} - failing(taps).keys()


def base(name: str) -> str:
    return name.partition(" of rank ")[0]


def size(tap: Tap) -> float:
    return float("inf") if tap.rms_rel is None else tap.rms_rel
