"""Compute values of a graph again: in one way of rounding, from the port's own values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from graphlib import TopologicalSorter
from typing import Any

import numpy as np

from lockstep.parity.graph.by_queries import AVERAGE, as_a_whole, by_queries, whole
from lockstep.parity.graph.by_rows import by_rows
from lockstep.parity.graph.call import EXPERTS, Call, Constant, Derived, Ref, Tensor, Value
from lockstep.parity.graph.graph import Graph, values_of

Rewritten = Mapping[int, Call]  # the calls that a fault changes, by number
Read = Callable[[Tensor], Any]
KEPT = 256 << 20  # bytes of right values that an evaluator keeps


@dataclass
class Evaluator:
    """One way of computing: a namespace of operations and a dtype, over one graph and one dump.

    `dumped` holds the port's values by number, and whatever is computed takes them where they are.
    `read` brings a tensor of the checkpoint. `rows` cuts the prompt off after so many tokens; None
    computes all. `seen` are the tokens that are judged, None all: a large attention is made for no
    others. Right values are kept, so that a fault costs no more than what lies behind it.
    """

    graph: Graph
    ops: Any
    dtype: np.dtype
    dumped: Mapping[int, np.ndarray]
    read: Read
    rows: int | None = None
    seen: Sequence[int] | None = None
    kept: OrderedDict[int, Any] = field(default_factory=OrderedDict)
    size: int = 0
    paths: dict[int, frozenset[int]] = field(default_factory=dict)
    followers: dict[int, frozenset[int]] = field(default_factory=dict)

    def target(self, number: int, rewritten: Rewritten | None = None) -> np.ndarray:
        """Return a value as the port should have computed it, with some calls rewritten."""
        if not rewritten:
            return self.right(number)
        values: dict[int, Any] = {}
        for call in self.reached(number, rewritten):
            for source in self.taken(call):
                if source not in self.dumped and source not in values:
                    values[source] = self.made(source)
            values[call.number] = self.compute(call, values)
        return whole(values[number]) if number in values else self.right(number)

    def reached(self, number: int, rewritten: Rewritten) -> list[Call]:
        """Return the calls that a rewrite reaches on the way to a value, inputs first."""
        on_the_way = self.before(number)
        if rewritten.keys() <= on_the_way and self.keeps_to(on_the_way, rewritten):
            behind = set().union(*(self.behind(n) for n in rewritten)) & on_the_way
            return [rewritten.get(n) or self.graph.calls[n] for n in sorted(behind)]
        return self.reached_anyhow(number, rewritten)

    def keeps_to(self, way: frozenset[int], rewritten: Rewritten) -> bool:
        """Say whether rewritten calls take earlier values alone, those of a way its own."""
        return all(
            taken < number and (number not in way or taken in way or taken in self.dumped)
            for number, call in rewritten.items()
            for taken in values_of(call)
        )

    def taken(self, call: Call) -> Iterable[int]:
        """Return the values that a call takes, rewritten or not."""
        right = call is self.graph.calls[call.number]
        return self.graph.sources(call.number) if right else values_of(call)

    def before(self, number: int) -> frozenset[int]:
        """Return a call and all that must be computed before it."""
        if number not in self.paths:
            self.paths[number] = frozenset(self.graph.piece(number, self.dumped).calls)
        return self.paths[number]

    def behind(self, number: int) -> frozenset[int]:
        """Return a call and all that is computed from it, up to dumped values."""
        if number not in self.followers:
            found, waiting = {number}, [number]
            while waiting:
                for taker in self.graph.consumers[waiting.pop()]:
                    if taker not in found:
                        found.add(taker)
                        waiting += [taker] * (taker not in self.dumped)
            self.followers[number] = frozenset(found)
        return self.followers[number]

    def reached_anyhow(self, number: int, rewritten: Rewritten) -> list[Call]:
        """Do it for rewrites that take values which right calls there do not take."""
        reached: dict[int, bool] = {}
        waiting, ordered = [(number, False)], []
        while waiting:
            current, inputs_known = waiting.pop()
            call = rewritten.get(current) or self.graph.calls[current]
            sources = [n for n in values_of(call) if n not in self.dumped]
            if inputs_known:
                reached[current] = current in rewritten or any(reached[n] for n in sources)
                ordered += [call] * reached[current]
            elif current not in reached:
                reached[current] = False
                waiting.append((current, True))
                waiting += ((n, False) for n in sources if n not in reached)
        return ordered

    def right(self, number: int) -> np.ndarray:
        """Return the right value of a call, kept from before or computed."""
        return whole(self.made(number))

    def made(self, number: int) -> Any:
        """Return the same, but a large matrix of queries by keys is put off."""
        if number in self.kept:
            self.kept.move_to_end(number)
            return self.kept[number]
        values, missing = self.at_hand(number)
        for current in self.in_order(missing):
            values[current] = self.compute(self.graph.calls[current], values)
            self.keep(current, values[current])
        return values[number]

    def in_order(self, missing: set[int]) -> list[int]:
        """Sort calls, inputs first: in the graph of a bug one may take what a later one makes."""
        sources = {number: self.graph.sources(number) for number in missing}
        if all(max(taken, default=-1) < number for number, taken in sources.items()):
            return sorted(missing)
        return [number for number in TopologicalSorter(sources).static_order() if number in missing]

    def at_hand(self, number: int) -> tuple[dict[int, Any], set[int]]:
        """Return what is kept of the way to a value, and which calls are missing behind that.

        What was dropped is not missed, if all that takes it is kept.
        """
        kept: dict[int, Any] = {}
        missing, waiting = {number}, [number]
        while waiting:
            for source in self.graph.sources(waiting.pop()):
                if source in self.dumped or source in missing:
                    continue
                if source in self.kept:
                    self.kept.move_to_end(source)
                    kept[source] = self.kept[source]
                else:
                    missing.add(source)
                    waiting.append(source)
        return kept, missing

    def keep(self, number: int, value: Any) -> None:
        self.kept[number] = value
        self.size += value.nbytes
        while self.size > KEPT and len(self.kept) > 1:
            self.size -= self.kept.popitem(last=False)[1].nbytes

    def forget(self, calls: Collection[int]) -> None:
        """Drop what is kept of some calls, but for what others take too."""
        inside = {*calls}
        for number in inside & self.kept.keys():
            if inside.issuperset(self.graph.consumers[number]) or number in self.dumped:
                self.size -= self.kept.pop(number).nbytes

    def compute(self, call: Call, values: Mapping[int, Any]) -> Any:
        """Call an operation, or what stands in its place.

        A right operation puts a large matrix of queries by keys off, to be made some queries at a
        time; another one takes and makes it as a whole, and so does what changes inputs.
        Raises: ValueError if that would be too large.
        """
        inputs = [self.resolved(ref, values) for ref in self.read_sparingly(call)]
        called = partial(self.called, call, **self.options(call, inputs))
        if call.instead or call.after or call.idle:
            return as_a_whole(call.op, called, inputs)
        if call.op != AVERAGE:
            return by_queries(call.op, called, inputs)
        seen = self.seen if self.is_last(call.number) else None
        return by_queries(call.op, partial(by_rows, called), inputs, seen=seen)

    def options(self, call: Call, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return an operation's options in this dtype.

        Experts may be as many a token as a port's router chose: that is no bug of theirs.
        """
        options = dict(call.options) | ({"dtype": self.dtype} if "dtype" in call.options else {})
        return options | ({"per_token": inputs[1].shape[-1]} if call.op in EXPERTS else {})

    def is_last(self, number: int) -> bool:
        """Say whether tokens do not meet again behind a call, before the next dumped values."""
        calls = self.graph.calls
        return not any(calls[one].op == AVERAGE for one in self.behind(number) - {number})

    def called(self, call: Call, *inputs: Any, **options: Any) -> np.ndarray:
        return call.made(self.ops, *inputs, **options)

    def read_sparingly(self, call: Call) -> tuple[Ref, ...]:
        """Ask for no more rows of a table than a lookup needs: it may be larger than all else."""
        match call.op, call.inputs:
            case "embedding", (Constant(value=ids, rows=rows), Tensor() as table):
                asked, places = np.unique(ids, return_inverse=True)
                some = replace(table, rows=tuple(asked.tolist()))
                return Constant(places.reshape(ids.shape), rows), some
        return call.inputs

    def resolved(self, ref: Ref, values: Mapping[int, Any]) -> Any:
        """Return what a reference stands for."""
        if isinstance(ref, Value):
            if ref.number in self.dumped:
                return self.port(ref.number)
            return values[ref.number]
        if isinstance(ref, Tensor):
            return self.read(ref)
        if isinstance(ref, Derived):
            sources = [self.resolved(source, values) for source in ref.sources]
            return as_a_whole("input", partial(ref.change, self.ops), sources)
        return ref.value if ref.rows is None else self.cut(ref.value, (ref.rows,))

    def port(self, number: int) -> np.ndarray:
        """Return the port's value in this way's dtype, as far as the rows go; a mask stays one."""
        value = self.cut(self.dumped[number], self.graph.token_axes[number])
        return value if value.dtype.kind == "b" else value.astype(self.dtype, copy=False)

    def given(self, number: int, rewritten: Rewritten | None = None) -> np.ndarray:
        """Return the port's value if it has one, else what it should be, some calls rewritten."""
        return self.port(number) if number in self.dumped else self.target(number, rewritten)

    def cut(self, value: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Leave the tokens beyond `rows` out."""
        if self.rows is None:
            return value
        kept = tuple(
            slice(self.rows) if axis in axes else slice(None) for axis in range(value.ndim)
        )
        return value[kept]


def is_early(call: Call) -> bool:
    """Say whether a call takes only values that are computed before it."""
    return all(number < call.number for number in values_of(call))
