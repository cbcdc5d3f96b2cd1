"""Many sets of bugs at once, computed for a few tokens of one layer alone.

What attention makes of a token hangs on one query, and on all keys and values. Each of these is
made by few bugs of a set, so it is computed once for many sets. Behind attention each token goes
its own way. So the expensive rest is computed of a few tokens for a whole stack of sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import Atom, rewritten
from lockstep.parity.explaining.searching.segments import bottlenecks
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Call, Constant, Derived, Evaluator, Value
from lockstep.parity.graph.graph import Piece, values_of
from lockstep.parity.graph.refusals import if_computable
from lockstep.parity.noise.exact import FLOAT64

MEET, MASK = "attention_scores", "causal_mask"  # where tokens meet, and which of them may
CLOSE = 1e-9  # of a value's size, that the last digits of two orders of sums may differ by
BYTES = 8 << 20  # of the values that a stack of sets takes
KEPT = 128 << 20  # of what bugs make of values before tokens meet

Calls = Mapping[int, Call]
Group = list[tuple[int, list[np.ndarray]]]  # places of sets, and the values that each takes
Key = frozenset[tuple[int, int]]  # calls as they are rewritten, by number and identity


@dataclass(frozen=True)
class Span:
    """The calls from the first value behind some, up to an end, and what they take from before.

    `axes` are those along which a token's own part of these lies; None if it needs all of it.
    """

    first: int
    end: int
    axes: Mapping[int, int | None]
    paths: dict[int, frozenset[int]] = field(default_factory=dict)
    followers: dict[int, frozenset[int]] = field(default_factory=dict)


@dataclass
class FewTokens:
    """What sets of bugs make of some `tokens` of a piece."""

    trial: Trial
    piece: Piece
    tokens: np.ndarray
    candidates: Sequence[Atom] = ()
    whole_masks: dict[tuple[int, int], Call] = field(default_factory=dict)
    made: dict[tuple[int, Key], np.ndarray | None] = field(default_factory=dict)
    alone: dict[tuple[int, Key], bool] = field(default_factory=dict)  # whether tokens need no other
    held: dict[int, Call] = field(default_factory=dict)  # so that no two have one identity

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """From where tokens meet to the first sum behind, and from there on, if it goes on.

        There is none if some tokens cannot be computed without the others.
        """
        graph, target = self.trial.graph, self.piece.target
        meet = [n for n in self.piece.calls if graph.calls[n].op == MEET]
        if len(meet) != 1 or graph.token_axes[target] != (1,) or graph.shapes[target][0] != 1:
            return ()
        if graph.shapes[target][1] < 2:  # a single token goes no way of its own
            return ()
        cuts = bottlenecks(self.piece, graph, self.trial.dumped)
        sums = [c for c in cuts if c > meet[0] and graph.calls[c].op == "add"]
        end = sums[0] if sums else target
        spans = (self.span(meet[0], end),)
        spans += (self.span(end + 1, target),) if end < target else ()
        cut = any(axis is not None for axis in spans[0].axes.values())
        return spans if cut and all(self.agrees_in(one, {}) for one in spans) else ()

    @cached_property
    def port(self) -> np.ndarray:
        """What the port has of the tokens, (S, N)."""
        return self.cut(self.trial.port(self.piece.target).astype(np.float64), 1)[0]

    @cached_property
    def ends(self) -> np.ndarray:
        """What they should be, (S, N), whatever the port has there."""
        return self.cut(self.trial.centre(None).target(self.piece.target), 1)[0]

    def span(self, first: int, end: int) -> Span:
        graph = self.trial.graph
        inside = [n for n in self.piece.calls if first <= n <= end]
        wrong = (rewritten([atom], graph) or {} for atom in self.candidates)
        calls = [call for some in wrong for n, call in some.items() if n in inside]
        taken = {source for n in inside for source in graph.sources(n) if source < first}
        taken |= {source for call in calls for source in values_of(call) if source < first}
        span = Span(first, end, dict.fromkeys(sorted(taken)))
        return Span(first, end, {number: self.own_axis(number, span) for number in taken})

    def own_axis(self, number: int, span: Span) -> int | None:
        """Return the axis of a value whose second place shows in the second token alone.

        The first token shows no query, whose only key it is.
        """
        values = {one: self.right(one) for one in span.axes}
        right = self.run(span, values, {})
        for axis in self.trial.graph.token_axes[number]:
            shaken = values[number].copy()
            first, second = ((slice(None),) * axis + (place,) for place in (0, 1))
            shaken[second] = shaken[first] if shaken.dtype == bool else 1.01 * shaken[first]
            there = self.run(span, values | {number: shaken}, {})
            if there is None or right is None:
                return None
            moved = np.abs(there - right).max(axis=(0, *range(2, right.ndim)))
            if np.flatnonzero(~(moved <= CLOSE * np.abs(right).max())).tolist() == [1]:
                return axis
        return None

    def right(self, number: int) -> np.ndarray:
        return self.trial.centre(None).given(number)

    @np.errstate(all="ignore")  # a broken port may hold anything
    def run(self, span: Span, values: dict[int, np.ndarray], calls: Calls) -> np.ndarray | None:
        """Compute the end of a span from what it takes; None if that cannot be."""
        ops = self.trial.centre(None).ops
        run = Evaluator(self.trial.graph, ops, FLOAT64, values, self.trial.read)
        run.paths, run.followers = span.paths, span.followers
        with if_computable(IndexError, TypeError):
            return run.target(span.end, calls)
        return None

    def key_of(self, calls: Calls) -> Key:
        for call in calls.values():
            self.held.setdefault(id(call), call)
        return frozenset((number, id(call)) for number, call in calls.items())

    def prepared(self, calls: Calls, span: Span) -> Calls:
        """Compute what bugs make of a mask whole, since they count its rows; then cut it."""
        return {n: self.with_whole_mask(call, span) for n, call in calls.items()}

    def with_whole_mask(self, call: Call, span: Span) -> Call:
        (key,) = self.key_of({call.number: call})
        if key not in self.whole_masks:
            graph, run = self.trial.graph, self.trial.centre(None)
            for index, ref in enumerate(call.inputs[: len(graph.calls[call.number].inputs)]):
                usual = graph.calls[call.number].inputs[index]
                axis = span.axes.get(usual.number) if isinstance(usual, Value) else None
                if axis is None or not isinstance(ref, Derived):
                    continue
                sources = {*values_of(replace(call, inputs=(ref,)))}
                if all(graph.calls[n].op == MASK for n in sources):
                    value = run.resolved(ref, {n: self.right(n) for n in sources})
                    call = call.with_input(index, Constant(self.cut(value, axis)))
            self.whole_masks[key] = call
        return self.whole_masks[key]

    def cut(self, value: np.ndarray, axis: int | None) -> np.ndarray:
        return value if axis is None else np.take(value, self.tokens, axis=axis)

    def agrees(self, span: Span, calls: Calls) -> bool:
        """Say whether some tokens can be computed without the others, and in a stack.

        They can if they can with each of the calls alone; what makes sense only together is tried.
        """
        each = ({number: call} for number, call in calls.items())
        return all(self.agrees_in(span, one) for one in each) or self.agrees_in(span, calls)

    def agrees_in(self, span: Span, calls: Calls) -> bool:
        """Say whether what some tokens and a stack give is what all tokens do."""
        key = span.first, self.key_of(calls)
        if key not in self.alone:
            values = {one: self.right(one) for one in span.axes}
            few = {n: [self.cut(value, span.axes[n])] * 2 for n, value in values.items()}
            stacks = {n: self.stacked(n, some) for n, some in few.items()}
            whole = self.run(span, values, calls)
            some = self.run(span, stacks, self.prepared(calls, span))
            taken = {n for call in calls.values() for n in values_of(call) if n < span.first}
            if whole is None or some is None or not taken <= {*span.axes}:
                self.alone[key] = False
            else:
                self.alone[key] = same(twice(self.cut(whole, 1)), some)
        return self.alone[key]

    @np.errstate(all="ignore")
    def values(self, some: Sequence[Atoms]) -> list[np.ndarray | None]:
        """Return the target for each set, (S, N); None for what cannot be."""
        before = self.spans[0]
        found: list[np.ndarray | None] = [None] * len(some)
        every = [rewritten(atoms, self.trial.graph) for atoms in some]
        fronts: dict[Key, tuple[Calls, list[int]]] = {}
        for place, calls in enumerate(every):
            if calls is not None:
                front = {n: call for n, call in calls.items() if n <= before.end}
                fronts.setdefault(self.key_of(front), (front, []))[1].append(place)
        middles = self.middles([calls for calls, _ in fronts.values()])
        later: dict[Key, tuple[Calls, list[tuple[int, np.ndarray]]]] = {}
        for (_, places), middle in zip(fronts.values(), middles, strict=True):
            if middle is not None:
                for place in places:
                    rest = {n: c for n, c in (every[place] or {}).items() if n > before.end}
                    later.setdefault(self.key_of(rest), (rest, []))[1].append((place, middle))
        for calls, group in later.values():
            for place, end in self.behind(calls, group):
                found[place] = end
        return found

    def behind(
        self, calls: Calls, group: list[tuple[int, np.ndarray]]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield what the last span makes of what the one before it did, under its place."""
        span = self.spans[-1]
        if span is self.spans[0]:
            yield from group
            return
        for part in parts(group, self.room(span)):
            ends = self.continued(calls, np.stack([middle for _, middle in part]))
            if ends is not None:
                yield from ((place, end) for (place, _), end in zip(part, ends, strict=True))

    def continued(self, calls: Calls, stack: np.ndarray) -> np.ndarray | None:
        """Return what the last span makes of many values (M, S, N) of the sum before it, with some
        calls rewritten; None if tokens do not go their own ways there.
        """
        span = self.spans[-1]
        if calls and not self.agrees(span, calls):
            return None
        spread = {
            n: self.stacked(n, [self.cut(self.right(n), axis)] * len(stack))
            for n, axis in span.axes.items()
        }
        ends = self.run(span, spread | {self.spans[0].end: stack}, calls)
        fits = ends is not None and ends.shape == (len(stack), *self.ends.shape)
        return ends if fits else None

    def room(self, span: Span) -> int:
        """Return how many sets go into one stack."""
        inside = [n for n in self.piece.calls if span.first <= n <= span.end]
        widest = max(math.prod(self.trial.graph.shapes[n]) for n in inside)
        share = len(self.tokens) / self.trial.graph.shapes[span.end][1]
        return max(int(BYTES / (8 * widest * share)), 1)

    def middles(self, some: Sequence[Calls]) -> list[np.ndarray | None]:
        """Return what sets of rewritten calls make of the sum behind attention, (S, N) each."""
        if sum(value.nbytes for value in self.made.values() if value is not None) > KEPT:
            self.made.clear()
        found: list[np.ndarray | None] = [None] * len(some)
        usual = {place: one for place, one in enumerate(some) if self.meet_as_usual(one)}
        for place, end in self.in_stacks(usual):
            found[place] = end
        others = [place for place in range(len(some)) if place not in usual]
        mixed = self.with_others([some[place] for place in others])
        for place, end in zip(others, mixed, strict=True):
            found[place] = end
        return found

    def meet_as_usual(self, calls: Calls) -> bool:
        """Say whether tokens meet in attention alone, so that some need no others behind it."""
        masked = any(self.trial.graph.calls[n].op == MASK for n in calls)
        return not masked and self.agrees(self.spans[0], self.tail(calls))

    def tail(self, calls: Calls) -> Calls:
        """Return the calls from where tokens meet."""
        return {n: call for n, call in calls.items() if n >= self.spans[0].first}

    def in_stacks(self, some: Mapping[int, Calls]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield what sets make of the sum, under their places, from stacks of what they take."""
        span = self.spans[0]
        shape = len(self.tokens), self.trial.graph.shapes[span.end][-1]
        for tail, group in self.grouped(some):
            for part in parts(group, self.room(span)):
                stacks = {
                    n: self.stacked(n, [values[index] for _, values in part])
                    for index, n in enumerate(span.axes)
                }
                ends = self.run(span, stacks, self.prepared(tail, span))
                if ends is not None and ends.shape == (len(part), *shape):
                    yield from zip((place for place, _ in part), ends, strict=True)

    def grouped(self, some: Mapping[int, Calls]) -> Iterable[tuple[Calls, Group]]:
        """Return the sets that go into one stack: their calls where tokens meet, and what each
        takes from before; those that can take nothing are left out.
        """
        span, groups = self.spans[0], dict[object, tuple[Calls, Group]]()
        for place, calls in some.items():
            taken = [self.taken(n, calls) for n in span.axes]
            kept = [value for value in taken if value is not None]
            if len(kept) == len(taken):
                tail = self.tail(calls)
                key = self.key_of(tail), tuple(map(self.sort_of, span.axes, kept))
                groups.setdefault(key, (tail, []))[1].append((place, kept))
        return groups.values()

    def with_others(self, some: Sequence[Calls]) -> list[np.ndarray | None]:
        """Compute all tokens, for bugs that mix them otherwise than attention does: in stacks,
        where that gives what each of them gives alone.
        """
        if not some or len(self.tokens) == len(self.every):
            return [self.slowly(calls) for calls in some]
        ends = self.of_all.middles(some)
        return [None if end is None else end[self.tokens] for end in ends]

    @cached_property
    def every(self) -> np.ndarray:
        return np.arange(self.trial.graph.shapes[self.piece.target][1])

    @cached_property
    def of_all(self) -> FewTokens:
        """The same of every token."""
        return FewTokens(self.trial, self.piece, self.every, self.candidates)

    def taken(self, number: int, calls: Calls) -> np.ndarray | None:
        """Return what rewritten calls make of a value before tokens meet, once for all sets."""
        if number in self.trial.dumped:
            here: Calls = {}
        else:
            way = self.trial.centre(None).before(number)
            here = {n: call for n, call in calls.items() if n in way}
            taken = {source for call in here.values() for source in values_of(call)}
            if any(source not in way and source not in self.trial.dumped for source in taken):
                here = {n: call for n, call in calls.items() if n < self.spans[0].first}
        key = number, self.key_of(here)
        if key not in self.made:
            self.made[key] = None
            with if_computable(IndexError, TypeError):
                value = self.trial.centre(None).target(number, here) if here else self.right(number)
                self.made[key] = self.cut(value, self.spans[0].axes[number])
        return self.made[key]

    def sort_of(self, number: int, value: np.ndarray) -> object:
        """Return what values must share to go into one stack."""
        return value.shape if self.trial.graph.batched[number] else id(value)

    def stacked(self, number: int, values: list[np.ndarray]) -> np.ndarray:
        if not self.trial.graph.batched[number]:
            return values[0]
        if all(value is values[0] for value in values):
            return np.broadcast_to(values[0], (len(values), *values[0].shape[1:]))
        return np.concatenate(values)

    def slowly(self, calls: Calls) -> np.ndarray | None:
        """Compute one set by itself."""
        key = self.spans[0].end, self.key_of(calls)
        if key not in self.made:
            self.made[key] = None
            with if_computable(IndexError, TypeError):
                value = self.trial.centre(None).target(key[0], calls)
                if value.shape == self.right(key[0]).shape:
                    self.made[key] = self.cut(value, 1)[0]
        return self.made[key]


def parts(some: list, size: int) -> list:
    return [some[first : first + size] for first in range(0, len(some), size)]


def twice(value: np.ndarray) -> np.ndarray:
    return np.concatenate([value, value])


def same(left: np.ndarray, right: np.ndarray) -> bool:
    if left.shape != right.shape:
        return False
    numbers = left[~np.isnan(left)]  # there may be none
    size = np.sqrt(np.mean(np.square(numbers))) if numbers.size else 0.0
    return bool(np.allclose(left, right, rtol=0, atol=CLOSE * size, equal_nan=True))
