"""Find the value of one number where a known bug of the same operation stands beside it.

The first tokens say for each bug which value might be; all tokens say whether it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lockstep.parity.explaining.fitting.fit import AS_NEAR, EARLY, NEARER, Fit
from lockstep.parity.explaining.searching.hypothesis import Atom, rewritten
from lockstep.parity.explaining.searching.search import Search
from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.routers import ROUTING
from lockstep.parity.graph import Call, Conflict
from lockstep.parity.graph.call import EXPERTS
from lockstep.parity.graph.graph import Piece

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

# Calls that are one operation to whoever ports them.
TOGETHER = (("attention_scores", "softmax", "attention_context"), (ROUTING, *EXPERTS))
EACH = 2  # of the values to begin with, which Newton's method takes from within half a decade
CLOSE = 3.0  # times what may be left of all tokens, of the first ones, whose noise is uncertain
ASTRAY = 1e3  # noises of all tokens, beyond which no value is that the first ones allow is so near
SAME = 1e-3  # of a value: one that is as near to the right one is that


@dataclass(frozen=True, kw_only=True)
class Paired(Fit):
    """One number of some calls, with a bug of these, or of what belongs to them, in its place."""

    bug: Atom
    behind: bool  # whether the bug changes what the number did, as the catalogue has it

    def value(self) -> float | None:
        """Return the value that leaves nothing but noise beside the bug, and more without it.

        One that is as good as the right one is none.
        """
        value = super().value()
        if value is None or math.isclose(value, self.right, rel_tol=SAME) or self.is_any(value):
            return None
        alone = self.trial.look(self.piece, super().rewritten(value)).raw(0, None)
        return value if self.distance(value) < NEARER * alone else None

    def is_any(self, value: float) -> bool:
        """Say whether other values do as well: beside some bugs a number changes nothing more."""
        listed = self.number.among is not None
        every = self.number.values(self.first, self.trial.graph) if listed else (0.5, 1.0, 2.0)
        others = {one if listed else one * value for one in every} - {value}
        near = AS_NEAR * max(self.distance(value), 1.0)
        return any(self.distance(one) <= near for one in others) or self.spent

    def nearest(self) -> float | None:
        """Return the value that the port is nearest to; None if the first tokens allow none."""
        among = self.number.among is not None
        every = self.number.values(self.first, self.trial.graph)
        values = every if among else every[::EACH]
        rows = EARLY if not self.acausal else None
        value = self.early(values, rows)
        if not self.distance(value, rows) <= CLOSE * self.trial.limit:
            return None
        if among:
            return min(values, key=self.distance)
        if rows is not None and not self.shows(values, rows):
            value = self.begun(values, None)
        elif not self.distance(value) <= ASTRAY:
            return None
        return self.newton(value, None)

    def early(self, values: Sequence[float], rows: int | None) -> float:
        """Return the value that the first tokens are nearest to; so few are so much less work."""
        before = self.trial.count
        if self.number.among is None:
            value = self.newton(self.begun(values, rows), rows)
        else:  # a window that is longer than these tokens is one of them, though none feels it
            value = min(values, key=lambda one: self.distance(one, rows))
        self.distance(value, rows)
        share = 1.0 if rows is None else rows / self.length
        self.trial.count = before + math.ceil(share * (self.trial.count - before))
        return value

    @cached_property
    def without(self) -> dict[int, Call]:
        """The calls as the bug alone leaves them."""
        return rewritten([self.bug], self.trial.graph) or {}

    def rewritten(self, value: float) -> dict[int, Call]:
        """Return the calls that the bug and another value change; none if they exclude each other.

        That is judged as right arithmetic, which the port does not have.
        """
        if value == self.right:
            return self.without
        both = {number: self.composed(number, value) for number in self.calls}
        found = {number: call for number, call in both.items() if call is not None}
        return {**self.without, **found} if len(found) == len(both) else {}

    def composed(self, number: int, value: float) -> Call | None:
        """Return one call with the value, and the bug if it is in this one; None if none is so."""
        graph, steps = self.trial.graph, [self.becomes(value)]
        if number in self.bug.calls:
            steps.insert(1 if self.behind else 0, self.bug.hypothesis.rewrite)
        call: Call | None = graph.calls[number]
        try:
            for step in steps:
                call = None if call is None else step(call, graph)
        except Conflict:
            return None
        return call


def bugs_beside(search: Search, case: Case, fault: Fault, fit: Fit) -> list[Atom]:
    """Return the known bugs of some calls, or of what belongs to them, as many as may be looked at.

    Of those that do the same alone a few are enough. What makes noise, or is said of all layers, is
    not thought of; nor is another value of the same number.
    """
    near = belonging(search.piece, fit.calls, case)
    some = [atom for atom in search.atoms if atom.calls & near and may_be(atom, fault, case)]
    some = some[: max(fit.last - fit.trial.count, 0)]
    search.look_at(map(search.alone, some), None)
    seen = [one for one in some if search.moves(one) and search.alone(one) == frozenset([one])]
    return search.distinct(seen, 0, None)


def belonging(piece: Piece, calls: frozenset[int], case: Case) -> frozenset[int]:
    """Return some calls of a piece, and those that are one operation with them."""
    every = case.graph.calls
    kinds = {(op, every[n].layer) for n in calls for ops in TOGETHER if every[n].op in ops
             for op in ops}  # fmt: skip
    return calls | {n for n in piece.calls if (every[n].op, every[n].layer) in kinds}


def may_be(atom: Atom, fault: Fault, case: Case) -> bool:
    bug = atom.hypothesis
    if bug.fault.coarse or bug.undivided or bug.paired or bug.id == fault.id:
        return False
    return bug.variant in case.faults[bug.id].variants


def paired(
    case: Case, piece: Piece, some: Sequence[tuple[Fault, Fit]]
) -> Iterator[tuple[Fault, Paired, float]]:
    """Yield each number of a piece that has another value beside a bug, and that value."""
    for fault, one in in_turn(case, piece, some):
        if one.spent:
            return
        value = one.value()
        if value is not None:
            yield fault, one, value


def in_turn(
    case: Case, piece: Piece, some: Sequence[tuple[Fault, Fit]]
) -> Iterator[tuple[Fault, Paired]]:
    """Yield each number of some calls beside each bug: those in most calls first, by the nearest
    bugs; bounds that there are not come last.
    """
    search, places = case.search_over(piece), {id: place for place, id in enumerate(case.faults)}
    found: list[tuple[tuple[float, ...], Fault, Paired]] = []
    for fault, fit in some:
        for bug in bugs_beside(search, case, fault, fit):
            other = bug.hypothesis
            one = Paired(
                fit.trial, piece, fit.number, fit.calls, fit.last,
                fault.acausal or other.fault.acausal,
                bug=bug, behind=places[other.id] > places[fault.id],
            )  # fmt: skip
            distance = search.fit(frozenset([bug]))[0]
            found.append(((math.isinf(fit.right), -len(fit.calls), distance), fault, one))
    for _, fault, one in sorted(found, key=lambda each: each[0]):
        yield fault, one
