"""Find the value of one number that makes what a port has, from the port itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.number import Number
from lockstep.parity.faults.rewrites import only
from lockstep.parity.graph import Call, Graph
from lockstep.parity.graph.graph import Piece
from lockstep.parity.graph.refusals import if_computable
from lockstep.parity.judging.judge import EPSILONS

EARLY = 4  # tokens that a search begins with: angles of later ones have gone round
NEARBY = 1e-5  # share of a value that its derivative is taken over, where that is no rounding
ROUNDINGS = 8  # of the port's dtype, that it is taken over at least
STEPS = 16  # of Newton's method, as many as it takes from within half a decade
FEW = 6  # of them, by which what is right leads nearer
STILL = 1e-11  # a step of the logarithm after which nothing moves any more
DIGITS = 8  # of a shorter value
AS_NEAR = 1.5  # times the least distance, that a shorter value may leave
RIGHT = 1e-6  # of the right value, that another one must be off: less is how a port rounds
NEARER = 0.5  # of the distance of the right value, that must not be left


@dataclass(frozen=True)
class Fit:
    """One number of some calls of a piece, which all have the same value for it."""

    trial: Trial
    piece: Piece
    number: Number
    calls: frozenset[int]
    last: int  # computation of the trial, after which nothing is tried any more
    acausal: bool = False  # whether the first tokens show nothing without the others
    known: dict[tuple[float, int | None], float] = field(default_factory=dict)  # distances

    def value(self) -> float | None:
        """Return the shortest value that leaves nothing of the error but noise, if any does.

        None too where one factor of all that is right would do: a number that is none can be bent
        to that in few tokens, or where it is large.
        """
        found = self.nearest()
        if self.spent or found is None or not self.is_nearer(found):
            return None
        if math.isinf(self.right) and not (self.number.is_within(found) and self.is_shared(found)):
            return None
        if not self.is_factor and self.is_a_gain():
            return None
        value = self.shortest(found)
        calls = self.rewritten(value)
        if self.spent or not calls or math.isclose(value, self.right, rel_tol=RIGHT):
            return None
        return value if self.trial.judge(self.piece, calls).passed else None

    def is_nearer(self, value: float, rows: int | None = None) -> bool:
        """Say whether the port is nearer to a value than to the right one, if both are known."""
        return self.distance(value, rows) < NEARER * self.distance(self.right, rows)

    def is_shared(self, bound: float) -> bool:
        """Say whether a bound changes more than one number: it would do what any error of one is.

        Two are proof, since both have to end at the same value.
        """
        run, calls, without = self.trial.centre(None), self.rewritten(bound), self.without
        own = {one: {one: without[one]} if one in without else {} for one in calls}
        pairs = ((run.target(one, own[one]), run.target(one, {one: calls[one]})) for one in calls)
        return bool(sum(np.count_nonzero(right != bent) for right, bent in pairs) > 1)

    @property
    def is_factor(self) -> bool:
        """Whether one factor is what the number is, as for scores that are dumped."""
        return self.number.is_factor or (self.number.is_scale and self.calls == {self.piece.target})

    def is_a_gain(self) -> bool:
        """Say whether what is there without the number, times one factor, is what the port has."""
        target, run, calls = self.piece.target, self.trial.centre(None), self.without
        values = self.trial.port(target), run.target(target, calls)
        port, right = (self.trial.proving(value, target) for value in values)
        told = np.isfinite(port) & np.isfinite(right)
        gain = float(np.sum(port * right, where=told) / (np.sum(right**2, where=told) or 1.0))
        last = calls.get(target, self.trial.graph.calls[target])
        times = last.followed(lambda ops, x: ops.scale(x, by=gain))
        return self.trial.judge(self.piece, {**calls, target: times}).passed

    @property
    def without(self) -> dict[int, Call]:
        """The calls that are not right even where the number is."""
        return {}

    @property
    def spent(self) -> bool:
        return self.trial.count >= self.last

    @property
    def first(self) -> Call:
        return self.trial.graph.calls[min(self.calls)]

    @property
    def right(self) -> float:
        """The value that the calls should have."""
        return self.number.right(self.first, self.trial.graph) or 0.0

    def nearest(self) -> float | None:
        """Return the value that the port is nearest to, None if all are equally far."""
        values = [*self.number.values(self.first, self.trial.graph)]
        if self.number.among is not None:
            return min(values, key=self.distance, default=None)
        rows = EARLY if not self.acausal and self.shows(values, EARLY) else None
        begun = self.newton(self.begun(values, rows), rows)
        return begun if rows is None or self.is_refuted(begun, rows) else self.newton(begun, None)

    def is_refuted(self, value: float, rows: int) -> bool:
        """Say whether the first tokens are wrong, and no value makes them less so."""
        wrong = self.distance(self.right, rows) > self.trial.limit
        return wrong and not self.is_nearer(value, rows)

    def begun(self, values: Sequence[float], rows: int | None) -> float:
        """Return the nearest of some values, one that is felt if any is."""
        right = self.distance(self.right, rows)
        felt = [value for value in values if self.distance(value, rows) != right]
        return min(felt or values, key=lambda value: self.distance(value, rows))

    def shows(self, values: Sequence[float], rows: int) -> bool:
        """Say whether the first tokens depend on the number."""
        if rows >= self.length:
            return False
        ends = {self.distance(values[0], rows), self.distance(values[-1], rows)}
        return len(ends) > 1

    @property
    def length(self) -> int:
        """The tokens of the piece."""
        axis = self.trial.graph.token_axes[self.piece.target][0]
        return self.trial.port(self.piece.target).shape[axis]

    def newton(self, value: float, rows: int | None) -> float:
        """Go from a value to the nearest one of its decade, by Gauss and Newton, in logarithms."""
        best = value
        nearby = max(NEARBY, ROUNDINGS * EPSILONS[self.trial.dtype.name])
        for step in range(STEPS):
            if self.spent or (step >= FEW and not self.is_nearer(best, rows)):
                break
            error, moved = self.error(value, rows), self.error(value * (1 + nearby), rows)
            slope = (error - moved) / math.log1p(nearby)
            length = float(np.sum(slope * slope))
            change = float(np.sum(error * slope)) / length if length else 0.0
            value *= math.exp(min(max(change, -1.0), 1.0))
            best = min(best, value, key=lambda one: self.distance(one, rows))
            if not math.isfinite(change) or abs(change) < STILL:
                break
        return best

    @np.errstate(all="ignore")
    def error(self, value: float, rows: int | None) -> np.ndarray:
        """Return what the port has beyond what a value gives; nought where either is no number.

        It is nought everywhere for a value that cannot be, so that nothing is gone on from there.
        """
        self.trial.count += 1
        target, centre = self.piece.target, self.trial.centre(rows)
        port = self.trial.port(target, rows)
        with if_computable(ArithmeticError):  # which bounds that do not rise are not
            left = port - centre.target(target, self.rewritten(value))
            return np.where(np.isfinite(left), left, 0.0).astype(np.float64)
        return np.zeros(port.shape)

    def distance(self, value: float, rows: int | None = None) -> float:
        """Return how far the port is from what a value gives, over the noise.

        It is infinite for all that is asked when the work is done.
        """
        if (value, rows) not in self.known:
            if self.spent:
                return math.inf
            look = self.trial.look(self.piece, self.rewritten(value), rows)
            self.known[value, rows] = look.raw(0, None)
        return self.known[value, rows]

    def becomes(self, value: float) -> Rewrite:
        """Return the rewrite that gives the number a value wherever the right one is the same."""

        def same(call: Call, graph: Graph) -> bool:
            return self.number.right(call, graph) == self.right

        return only(same, self.number.becomes(value))

    def rewritten(self, value: float) -> dict[int, Call]:
        """Return the calls that another value changes."""
        graph, rewrite = self.trial.graph, self.number.becomes(value)
        every = {number: rewrite(graph.calls[number], graph) for number in self.calls}
        return {number: call for number, call in every.items() if call is not None}

    def spoils(self, piece: Piece, calls: frozenset[int], value: float) -> bool:
        """Say whether a right piece would be wrong if these calls of it had the value too."""
        there = replace(self, piece=piece, calls=calls).rewritten(value)
        return not self.trial.judge(piece, there).passed

    def shortest(self, value: float) -> float:
        """Return the value with the fewest digits that is about as near; of a list, that itself."""
        if self.number.among is not None:
            return value
        near = max(AS_NEAR * self.distance(value), 1.0)
        short = (float(f"{value:.{digits}g}") for digits in range(1, DIGITS + 1))
        return next((one for one in short if self.distance(one) <= near), value)
