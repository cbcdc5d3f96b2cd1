"""A number that arithmetic depends on, which a port may have at any other value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import option
from lockstep.parity.graph import Call, Graph

PER_DECADE = 4  # values to begin with, of a number that may be any
Right = Callable[[Call, Graph], float | None]


@dataclass(frozen=True)
class Number:
    """Its name in words, with a place for the value; how to read it, and to give it another one.

    `right` reads it from a call, None where the call has none; `becomes` makes the rewrite that
    changes it. It lies anywhere `within` two bounds, or is one of the values that `among` lists.
    One that `is_factor` does no more than multiply all that a call gives; one that `is_scale` does
    so where what the call gives is dumped, and more where it is not. One that `is_quick` has so few
    values that it is asked before the others. One that `is_alone` is not asked for beside another
    bug of its calls: work for that is for what is usual.
    """

    form: str
    right: Right
    becomes: Callable[[float], Rewrite]
    within: tuple[float, float] = (0.0, 0.0)
    among: Callable[[Call, Graph], Sequence[float]] | None = None
    is_factor: bool = False
    is_scale: bool = False
    is_quick: bool = False
    is_alone: bool = False
    for_none: str = "where there is none"  # said beside a value of what should have none

    def values(self, call: Call, graph: Graph) -> Sequence[float]:
        """Return the values to begin with: every one that it may have, or some of each decade."""
        if self.among is not None:
            return self.among(call, graph)
        least, most = self.within
        return np.geomspace(least, most, round(np.log10(most / least) * PER_DECADE) + 1).tolist()

    def is_within(self, value: float) -> bool:
        """Say whether a value lies within the bounds, if any: beyond them it is as good as none."""
        if self.among is not None:
            return True
        least, most = self.within
        return least <= value <= most

    def said(self, value: float, right: float) -> str:
        beside = f"for {right:.7g}" if np.isfinite(right) else self.for_none
        return f"{self.form.format(f'{value:.7g}')} {beside}".rstrip()

    def other(self, call: Call, graph: Graph) -> Call | None:
        """Give the number another value, as an example: twice its own, or 1 for nought or no end;
        of a list the middle one.
        """
        right = self.right(call, graph)
        if right is None:
            return None
        listed = () if self.among is None else self.among(call, graph)
        some = [one for one in listed if one != right]
        twice = 1 if right in (0, np.inf) else 2 * right
        return self.becomes(some[len(some) // 2] if some else twice)(call, graph)


def bound_of_none(*ops: str) -> Right:
    """Return a reader of a bound that operations do not have: it is beyond any number."""
    return lambda call, graph: math.inf if call.op in ops else None


def option_of(
    op: str | tuple[str, ...],
    name: str,
    form: str,
    *,
    within: tuple[float, float] = (0.0, 0.0),
    among: Callable[[Call, Graph], Sequence[float]] | None = None,
) -> Number:
    """Return the number that is an option of an operation."""
    ops = (op,) if isinstance(op, str) else op

    def right(call: Call, graph: Graph) -> float | None:
        return call.options.get(name) if call.op in ops else None

    def becomes(value: float) -> Rewrite:
        return option(ops, name, lambda right: value)

    return Number(form, right, becomes, within, among)
