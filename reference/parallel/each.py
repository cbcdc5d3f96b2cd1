"""Values that ranks have of their own, and operations on them.

A value that all ranks have alike is an array, as ever. What differs from rank to rank is an `Each`:
one array a rank. An operation that is given some does its work once for every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

from lockstep.reference.checkpoint.parallel.rules import SUMMED
from lockstep.reference.shapes import Array


class Each(tuple):
    """One value for every rank, in their order."""


def for_each(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a function for every rank with what that rank has; once, if all have the same."""
    count = next((len(one) for one in arguments if isinstance(one, Each)), None)
    if count is None:
        return function(*arguments, **keywords)
    return Each(
        function(*(one[rank] if isinstance(one, Each) else one for one in arguments), **keywords)
        for rank in range(count)
    )


def all_sum(ops: Any, parts: Each) -> Array:
    """Add the parts of all ranks, in their order. Rounding: that of `add`, once for each rank."""
    return reduce(ops.add, parts)


class OpsForEach:
    """A namespace of operations that takes an `Each` wherever an array may stand."""

    def __init__(self, ops: Any) -> None:
        self.one = ops

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self.one, name)
        return self._sum_of(operation) if name in SUMMED else partial(for_each, operation)

    def _sum_of(self, operation: Callable[..., Any]) -> Callable[..., Array]:
        return lambda *given, **told: all_sum(self.one, for_each(operation, *given, **told))
