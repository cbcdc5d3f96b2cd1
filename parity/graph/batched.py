"""Many rewrites of one graph at once, side by side along the batch.

In a small model a call costs the same for one row of a batch as for thirty. So what lies behind
several rewrites is computed of all of them together; the rewritten calls alone are computed one by
one. Sums may be taken in another order than one by one: the last bits may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from lockstep.parity.graph.call import Constant, Derived, Ref, Value
from lockstep.parity.graph.evaluator import Evaluator, Rewritten
from lockstep.parity.graph.graph import values_of
from lockstep.parity.graph.refusals import if_computable

MOST, FEW = 32, 8  # rewrites in a batch; fewer are not worth one
ALIKE = 5  # rewrites of a call that are the same, for it to be computed together
CLOSE = 1e4  # roundings that a value in a batch may be off
BYTES = 4 << 20  # of the largest value of a batch: beyond, numbers cost more than calls


def at_once(run: Evaluator, target: int, some: Sequence[Rewritten]) -> list[np.ndarray | None]:
    """Return a value as each of some rewrites makes it; None where one must be computed alone.

    Those that reach alike calls go together.
    """
    found: list[np.ndarray | None] = [None] * len(some)
    size = room(run, target)
    way = run.before(target)
    early = [place for place, calls in enumerate(some) if run.keeps_to(way, calls)]
    early.sort(key=lambda place: min(some[place], default=target))
    for first in range(0, len(early), size) if size >= FEW else ():
        places = early[first : first + size]
        values = Batch(run, target, [some[place] for place in places]).values()
        for place, value in zip(places, values, strict=True):
            found[place] = value
    return found


def room(run: Evaluator, target: int) -> int:
    """Return how many rewrites go into a batch; none of a dump that has a batch of its own.

    None either where tokens are laid along the batch: each has frequencies of its own then.
    """
    graph, before = run.graph, run.before(target)
    if not graph.batched or not graph.batched[target]:
        return 0
    if any(graph.batched[number] and graph.shapes[number][0] != 1 for number in before):
        return 0
    largest = max(prod(graph.shapes[number]) for number in before)
    return min(BYTES // (largest * run.dtype.itemsize), MOST)


@dataclass
class Batch:
    """Some rewrites. `stacks` has of each value they move which of them do, and what it becomes:
    (N, ...). `alone` are those that make values of another shape or dtype, or none at all.
    """

    run: Evaluator
    target: int
    some: Sequence[Rewritten]
    stacks: dict[int, tuple[list[int], np.ndarray]] = field(default_factory=dict)
    alone: set[int] = field(default_factory=set)

    def values(self) -> list[np.ndarray | None]:
        reached = self.reached()
        taken = {number: self.sources(number) for number in sorted(reached)}
        last = {source: number for number in taken for source in taken[number]}
        for number in taken:
            self.compute(number, [one for one in reached[number] if one not in self.alone])
            for source in taken[number] & self.stacks.keys():
                if last[source] == number:
                    del self.stacks[source]
        members, stack = self.stacks.get(self.target, ([], np.empty(0)))
        found = {one: stack[place : place + 1] for place, one in enumerate(members)}
        right = self.run.right(self.target)
        return [
            None if one in self.alone else found.get(one, right) for one in range(len(self.some))
        ]

    def reached(self) -> dict[int, list[int]]:
        """Return of each call which rewrites it must be computed for."""
        found: dict[int, list[int]] = {}
        for one, calls in enumerate(self.some):
            for call in self.run.reached(self.target, calls):
                found.setdefault(call.number, []).append(one)
        return found

    def sources(self, number: int) -> frozenset[int]:
        changed = (values_of(calls[number]) for calls in self.some if number in calls)
        return self.run.graph.sources(number).union(*changed)

    def compute(self, number: int, members: list[int]) -> None:
        """Compute a call: together for those that leave it, or rewrite it alike."""
        alike: dict[int, list[int]] = {}
        for one in members:
            alike.setdefault(id(self.some[one].get(number)), []).append(one)
        parts: list[np.ndarray] = []
        done: list[int] = []
        for group in alike.values():
            stack = self.together(number, group)
            if stack is not None:
                parts.append(stack)
                done += group
            for one in group if stack is None else ():
                value = self.by_itself(number, one)
                if value is None:
                    self.alone.add(one)
                else:
                    parts.append(value)
                    done.append(one)
        if parts and not self.run.graph.batched[number]:
            self.alone.update(done)
        elif parts:
            self.stacks[number] = done, parts[0] if len(parts) == 1 else np.concatenate(parts)

    def together(self, number: int, members: list[int]) -> np.ndarray | None:
        """Compute one call for several; None if it cannot be, or not so.

        A wrong operation may look at the whole batch: two of them are computed alone as well.
        """
        wrong = self.some[members[0]].get(number)
        if wrong is not None and len(members) < ALIKE:
            return None
        call = wrong or self.run.graph.calls[number]
        inputs = tuple(self.placed(ref, members) for ref in call.inputs)
        with if_computable():
            stack = self.run.compute(replace(call, inputs=inputs), {})
            ends = (0, len(members) - 1) if wrong is not None else ()
            same = (self.agrees(number, stack, place, members) for place in ends)
            return stack if all(same) else None
        return None

    def placed(self, ref: Ref, members: list[int]) -> Ref:
        """Return a reference with values in the place of their numbers."""
        if isinstance(ref, Value):
            return Constant(self.taken(ref.number, members))
        if isinstance(ref, Derived):
            sources = tuple(self.placed(source, members) for source in ref.sources)
            return replace(ref, sources=sources)
        return ref

    def agrees(self, number: int, stack: np.ndarray, place: int, members: list[int]) -> bool:
        """Say whether one of several values is what it is alone, but for the order of sums."""
        value = self.by_itself(number, members[place])
        if value is None or stack.shape != (len(members), *value.shape[1:]):
            return False
        if stack.dtype != value.dtype or value.dtype.kind != "f":
            return False
        near = CLOSE * np.finfo(value.dtype).eps
        with np.errstate(all="ignore"):  # a wrong operation may give anything
            size = float(np.abs(value).max(initial=0.0))
            return np.allclose(stack[place], value[0], rtol=near, atol=near * size, equal_nan=True)

    def by_itself(self, number: int, one: int) -> np.ndarray | None:
        """Compute a call for one of them; None if it is not what the others can go on with."""
        call = self.some[one].get(number) or self.run.graph.calls[number]
        like = self.run.right(number)
        values = {source: self.taken(source, [one]) for source in values_of(call)}
        with if_computable():
            value = self.run.compute(call, values)
            return value if (value.shape, value.dtype) == (like.shape, like.dtype) else None
        return None

    def taken(self, number: int, members: list[int]) -> np.ndarray:
        """Return a value as some rewrites make it, one after another."""
        run = self.run
        held, stack = self.stacks.get(number, ([], np.empty(0)))
        if held == members:
            return stack
        if not held:
            right = run.port(number) if number in run.dumped else run.right(number)
            shape = len(members), *right.shape[1:]
            return np.broadcast_to(right, shape) if run.graph.batched[number] else right
        places = {one: place for place, one in enumerate(held)}
        if all(one in places for one in members):
            return stack[[places[one] for one in members]]
        right = run.right(number)
        return np.concatenate([
            stack[places[one] : places[one] + 1] if one in places else right for one in members
        ])  # fmt: skip
