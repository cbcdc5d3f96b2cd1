"""Compute values of a graph again: in one way of rounding, from the port's own values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.parity.graph.call import Call, Constant, Derived, Ref, Tensor, Value
from lockstep.parity.graph.graph import Graph, values_of

Rewritten = Mapping[int, Call]  # the calls that a fault changes, by number
Read = Callable[[Tensor], Any]
KEPT = 256 << 20  # bytes of right values that an evaluator keeps


@dataclass
class Evaluator:
    """One way of computing: a namespace of operations and a dtype, over one graph and one dump.

    `dumped` holds the port's values by number, and whatever is computed takes them where they are.
    `read` brings a tensor of the checkpoint. `rows` cuts the prompt off after so many tokens; None
    computes all. Right values are kept, so that a fault costs no more than what lies behind it.
    """

    graph: Graph
    ops: Any
    dtype: np.dtype
    dumped: Mapping[int, np.ndarray]
    read: Read
    rows: int | None = None
    kept: OrderedDict[int, np.ndarray] = field(default_factory=OrderedDict)
    size: int = 0

    def target(self, number: int, rewritten: Rewritten | None = None) -> np.ndarray:
        """Return a value as the port should have computed it, with some calls rewritten."""
        rewritten = rewritten or {}
        values: dict[int, np.ndarray] = {}
        for call, changed in self.order(number, rewritten):
            if changed:
                values[call.number] = self.compute(call, values)
            else:
                values[call.number] = self.right(call, values)
        return values[number]

    def order(self, number: int, rewritten: Rewritten) -> Iterator[tuple[Call, bool]]:
        """Yield what must be computed for a value, and whether a rewrite reaches it, inputs first.

        Right values that are kept need nothing before them.
        """
        reached: dict[int, bool] = {}
        waiting = [(number, False)]
        ordered: list[int] = []
        while waiting:
            current, inputs_known = waiting.pop()
            call = rewritten.get(current) or self.graph.calls[current]
            sources = [n for n in values_of(call) if n not in self.dumped]
            if inputs_known:
                reached[current] = current in rewritten or any(reached[n] for n in sources)
                ordered.append(current)
            elif current not in reached:
                reached[current] = False
                waiting.append((current, True))
                waiting += ((n, False) for n in sources if n not in reached)
        needed = self.needed(number, ordered, reached, rewritten)
        return (
            (rewritten.get(n) or self.graph.calls[n], reached[n]) for n in ordered if n in needed
        )

    def needed(
        self, number: int, ordered: list[int], reached: Mapping[int, bool], rewritten: Rewritten
    ) -> set[int]:
        """Return what of `ordered` is asked for, given which right values are kept."""
        needed = {number}
        for current in reversed(ordered):
            if current in needed and (reached[current] or current not in self.kept):
                call = rewritten.get(current) or self.graph.calls[current]
                needed.update(n for n in values_of(call) if n not in self.dumped)
        return needed

    def right(self, call: Call, values: Mapping[int, np.ndarray]) -> np.ndarray:
        """Return the right value of a call, kept from before or computed."""
        if call.number in self.kept:
            self.kept.move_to_end(call.number)
            return self.kept[call.number]
        value = self.compute(call, values)
        self.kept[call.number] = value
        self.size += value.nbytes
        while self.size > KEPT and len(self.kept) > 1:
            self.size -= self.kept.popitem(last=False)[1].nbytes
        return value

    def compute(self, call: Call, values: Mapping[int, np.ndarray]) -> np.ndarray:
        """Call an operation, or what stands in its place."""
        inputs = [self.resolved(ref, values) for ref in call.inputs]
        options = dict(call.options) | ({"dtype": self.dtype} if "dtype" in call.options else {})
        if call.instead is None:
            value = getattr(self.ops, call.op)(*inputs, **options)
        else:
            value = call.instead(self.ops, *inputs, **options)
        for change in call.after:
            value = change(self.ops, value)
        return value

    def resolved(self, ref: Ref, values: Mapping[int, np.ndarray]) -> Any:
        """Return what a reference stands for."""
        if isinstance(ref, Value):
            if ref.number in self.dumped:
                return self.port(ref.number)
            return values[ref.number]
        if isinstance(ref, Tensor):
            return self.read(ref)
        if isinstance(ref, Derived):
            return ref.change(self.ops, *(self.resolved(source, values) for source in ref.sources))
        return ref.value if ref.rows is None else self.cut(ref.value, (ref.rows,))

    def port(self, number: int) -> np.ndarray:
        """Return the port's value in this way's dtype, as far as the rows go."""
        value = self.cut(self.dumped[number], self.graph.token_axes[number])
        return value.astype(self.dtype, copy=False)

    def cut(self, value: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Leave the tokens beyond `rows` out."""
        if self.rows is None:
            return value
        kept = tuple(slice(self.rows) if axis in axes else slice(None) for axis in range(value.ndim))
        return value[kept]
