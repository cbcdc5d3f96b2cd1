"""The few ways to make a right call wrong, from which most entries of the catalogue are made.

Each returns a rewrite. `places` are regular expressions for the module that a call belongs to,
without its layer (`self_attn.q_norm`); none means any. A wrong operation is written in terms of the
right ones, `ops`, so that it rounds where they do, in whichever way of rounding it is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.graph import Call, Constant, Graph

NORMS = ("rms_norm", "unit_norm", "layer_norm")


def rewrite(ops: str | Collection[str], *places: str) -> Callable[[Rewrite], Rewrite]:
    """Restrict a rewrite to the calls of some operations at some places."""
    names = {ops} if isinstance(ops, str) else {*ops}

    def restrict(change: Rewrite) -> Rewrite:
        def restricted(call: Call, graph: Graph) -> Call | None:
            here = call.op in names and is_at(call.place, places)
            return change(call, graph) if here else None

        return restricted

    return restrict


@cache
def is_at(place: str, places: tuple[str, ...]) -> bool:
    return not places or any(re.fullmatch(pattern, place) for pattern in places)


def skipped(ops: str | Collection[str], *places: str) -> Rewrite:
    """Hand the first input on as it is."""
    return instead(ops, lambda ops, x, *inputs, **options: x, *places)


def instead(ops: str | Collection[str], wrong: Callable[..., Any], *places: str) -> Rewrite:
    """Compute something else: `wrong(ops, *inputs, **options)`."""
    return rewrite(ops, *places)(lambda call, graph: call.replaced(wrong))


def afterwards(ops: str | Collection[str], change: Callable[..., Any], *places: str) -> Rewrite:
    """Do something to the result: `change(ops, result)`."""
    return rewrite(ops, *places)(lambda call, graph: call.followed(change))


def option(
    ops: str | Collection[str], name: str, wrong: Callable[[Any], Any], *places: str
) -> Rewrite:
    """Give an option another value, made from the right one; where it is the same, nothing."""

    @rewrite(ops, *places)
    def change(call: Call, graph: Graph) -> Call | None:
        if name not in call.options or wrong(call.options[name]) == call.options[name]:
            return None
        return call.with_options(**{name: wrong(call.options[name])})

    return change


def changed_input(
    ops: str | Collection[str], index: int, change: Callable[..., Any], *places: str
) -> Rewrite:
    """Change one input on its way in: `change(ops, input)`. An input that is not there stays so."""

    @rewrite(ops, *places)
    def changed(call: Call, graph: Graph) -> Call | None:
        if index >= len(call.inputs):
            return None
        ref = call.inputs[index]
        absent = isinstance(ref, Constant) and ref.value is None
        return None if absent else call.with_changed(index, change)

    return changed


def either(*rewrites: Rewrite) -> Rewrite:
    """Return the rewrite that does whatever the first of several does that does anything."""

    def chosen(call: Call, graph: Graph) -> Call | None:
        return next((new for one in rewrites if (new := one(call, graph)) is not None), None)

    return chosen


def only(condition: Callable[[Call, Graph], bool], change: Rewrite) -> Rewrite:
    """Do it where a condition holds."""
    return lambda call, graph: change(call, graph) if condition(call, graph) else None
