"""Hold a port's value against what a hypothesis would have made of the port's own inputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from lockstep.parity.explaining.routing.coarse import turned
from lockstep.parity.explaining.routing.flips import routers_between, unsure_tokens
from lockstep.parity.explaining.routing.steering import ByChoices, Steering
from lockstep.parity.explaining.searching.look import (
    FAR,
    MOST_UNSURE,
    Look,
    nowhere,
)
from lockstep.parity.explaining.searching.no_numbers import lost, tokens_of, with_noughts
from lockstep.parity.graph import Call, Evaluator, Graph
from lockstep.parity.graph.batched import at_once
from lockstep.parity.graph.evaluator import Read
from lockstep.parity.graph.graph import Piece
from lockstep.parity.graph.refusals import pass_on_refusal
from lockstep.parity.judging.judge import (
    EPSILONS,
    LIMITS,
    Judgement,
    finite,
    judge,
    row_noise,
)
from lockstep.parity.judging.metrics import difference, rms
from lockstep.parity.noise import of_port, ways
from lockstep.parity.noise.exact import FLOAT64, exact

Rewritten = Mapping[int, Call]
UNSURE_BESIDE = 2 / 3  # of the tokens, at most, where the others speak for a bug
NOT_COMPARED = Judgement(FAR, 0.0, FAR, FAR, FAR, False, None)
STEPS = 64  # of the least number above nought, that rounding may take a sum next to nought
# The least number above nought.
SUBNORMAL = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "bfloat16": 2.0**-133,
    "float16": 2.0**-24,
}


@dataclass
class Trial:
    """One dump against one graph.

    `dumped` holds the port's values by number. Everything is judged as `diff` judges it: a float64
    replay is the centre, and legal ways to round at the port's dtype are the noise. `count` says
    how many values were computed so far.
    """

    graph: Graph
    ops: Any
    dtype: np.dtype
    dumped: Any  # a mapping of arrays by number, to which others can be joined by `|`
    read: Read
    centres: dict[int | None, Evaluator] = field(default_factory=dict)
    rounding: dict[int | None, list[Evaluator]] = field(default_factory=dict)
    usual: dict[tuple[int, int | None], float] = field(default_factory=dict)
    faint: dict[int, float] = field(default_factory=dict)
    routers: dict[int, list[Call]] = field(default_factory=dict)
    followed: dict[Any, tuple[tuple[int, ...], float, Any]] = field(default_factory=dict)
    told: dict[Any, tuple[np.ndarray, Any]] = field(default_factory=dict)  # tokens that show bits
    conventions: OrderedDict[tuple[int, ...], Evaluator] = field(default_factory=OrderedDict)
    count: int = 0
    unseen: dict[int, np.ndarray] = field(default_factory=dict)  # tokens (B, T) that prove nothing
    own: Sequence[Any] = ()  # `dumped`, as each way makes what a port lacks
    seen: Sequence[int] | None = None  # the tokens that are judged, None all
    also: Sequence[Callable[[Trial, int | None], Evaluator]] = ()  # legal ways of this dump alone
    remade: set[int] = field(default_factory=set)  # values that are not the port's own bits
    held: np.dtype | None = None  # what the port keeps its weights in, None as it computes

    def centre(self, rows: int | None) -> Evaluator:
        if rows not in self.centres:
            held = self.dtype if self.held is None else self.held
            ops = exact(of_port(self.ops, self.dtype), held)
            self.centres[rows] = self.evaluator(ops, FLOAT64, rows)
        return self.centres[rows]

    def ways(self, rows: int | None) -> list[Evaluator]:
        if rows not in self.rounding:
            every = ways(self.dtype)
            self.rounding[rows] = [
                Evaluator(self.graph, namespace, dtype, dumped, self.read, rows, self.seen)
                for (namespace, dtype), dumped in zip(
                    every, self.own or [self.dumped] * len(every), strict=True
                )
            ] + [make(self, rows) for make in self.also]
        return self.rounding[rows]

    def evaluator(self, ops: Any, dtype: np.dtype, rows: int | None) -> Evaluator:
        return Evaluator(self.graph, ops, dtype, self.dumped, self.read, rows, self.seen)

    def over(self, changed: Mapping[int, np.ndarray]) -> Trial:
        """Return the same trial of a dump with some other values."""
        return Trial(
            self.graph, self.ops, self.dtype, self.dumped | changed, self.read,
            unseen=self.unseen, own=[one | changed for one in self.own], seen=self.seen,
            also=self.also, remade=self.remade, held=self.held,
        )  # fmt: skip

    def put(self, values: Mapping[int, np.ndarray]) -> None:
        """Take other values for what the port has, in every way to round; then `forget`."""
        for dumped in (self.dumped, *self.own):
            dumped.update(values)

    def forget(self) -> None:
        """Drop what was computed from the dump, since it was changed."""
        runs = self.centres, self.rounding, self.conventions
        for known in (*runs, self.usual, self.faint, self.followed, self.told):
            known.clear()

    def finite(self, target: int) -> bool:
        """Say whether the port has a number everywhere."""
        return bool(np.isfinite(self.dumped[target]).all())

    def blind(self, target: int) -> bool:
        """Say whether the port has the same for every token: many sets of bugs would leave that."""
        port = self.tokens(self.port(target), target)
        return len(port) > 1 and bool((port == port[0]).all())

    def port(self, target: int, rows: int | None = None) -> np.ndarray:
        return self.centre(rows).cut(self.dumped[target], self.graph.token_axes[target])

    @np.errstate(all="ignore")  # what a broken port dumps may overflow anywhere
    def judge(
        self, piece: Piece, calls: Rewritten | None = None, *, coarse: bool = False
    ) -> Judgement:
        """Judge a piece as `diff` judges a tap, with some calls rewritten.

        Tokens that a router may have sent elsewhere by rounding alone are left out. `coarse` says
        that the rewritten calls round to a coarser grid than the port's; then some more are.
        """
        try:
            return self.judged(piece, calls or {}, coarse)
        except ValueError as error:  # shapes that this model does not have, or too large ones
            pass_on_refusal(error)
            if not calls:
                raise
            return NOT_COMPARED

    def judged(self, piece: Piece, calls: Rewritten, coarse: bool) -> Judgement:
        unsure, cells = self.unsure(piece, calls), lost(piece, self, calls)
        if unsure is not None and cells is not None:
            unsure &= ~tokens_of(cells, self.graph.token_axes[piece.target][0])
        choosing = not coarse and piece.target not in self.unseen
        if choosing and unsure is not None and unsure.mean() > MOST_UNSURE:
            return self.judge_by_choices(piece, calls, unsure)
        centre, spread = self.replayed(piece, calls)
        port = self.port(piece.target)
        if centre.shape != port.shape:
            return NOT_COMPARED
        if coarse:
            axis, errors = self.graph.token_axes[piece.target][0], [way - centre for way in spread]
            other_side = turned(difference(port, centre), errors, axis)
            unsure = other_side if unsure is None else unsure | other_side
        judged = self.judge_sure(piece, centre, spread, unsure, cells)
        if not calls:
            self.remember(piece, judged, centre)
        return judged

    def remember(self, piece: Piece, judged: Judgement, centre: np.ndarray) -> None:
        """Keep the noise of a piece as it should be, and no values if it is: few ask for them."""
        every_token = not self.routers_of(piece) and piece.target not in self.unseen
        if every_token and np.isfinite(centre).all():
            self.usual[piece.target, None] = judged.noise
        for run in (self.centre(None), *self.ways(None)) if judged.passed else ():
            run.forget(piece.calls)

    def judge_by_choices(self, piece: Piece, calls: Rewritten, unsure: np.ndarray) -> Judgement:
        """Judge a piece most of whose tokens depend on a near choice: with the port's choices.

        Within one layer the tokens that depend on none must be right whatever these are. With a bug
        for which no choices are found they decide, if they are not few, and not right without it.
        """
        speaking = bool(calls) and not self.graph.several(piece) and not unsure.all()
        sure = self.judge_sure(piece, *self.replayed(piece, calls), unsure) if speaking else None
        if sure is not None and not sure.passed:
            return sure
        steering = self.steering(piece, calls)
        lost = steering.settle()
        self.count += steering.count
        if lost is not None:
            return self.steered(steering, lost)
        if sure is not None and unsure.mean() <= UNSURE_BESIDE and self.is_off(piece, unsure):
            return sure
        return replace(self.judge_sure(piece, *self.replayed(piece, calls), None), passed=False)

    def is_off(self, piece: Piece, unsure: np.ndarray) -> bool:
        """Say whether right arithmetic is not what the port has in its other tokens."""
        return not self.judge_sure(piece, *self.replayed(piece, None), unsure).passed

    def judge_as_chosen(self, piece: Piece, calls: Rewritten, other: ByChoices) -> Judgement | None:
        """Judge a piece with the choices that another judgement found; None if rounding may not
        make them here.
        """
        steering = replace(self.steering(piece, calls), forced=dict(other.made))
        legal = steering.legal(other.lost)
        self.count += steering.count
        return self.steered(steering, other.lost) if legal else None

    def steering(self, piece: Piece, calls: Rewritten) -> Steering:
        centres, ways = (self.centre(None), self.centre(1)), self.ways(None)
        return Steering(piece, calls, self.routers_of(piece), *centres, ways)

    def steered(self, steering: Steering, lost: np.ndarray) -> Judgement:
        """Judge a piece with the choices that were found."""
        made = steering.made()
        replayed = self.replayed(steering.piece, steering.steered(made))
        return ByChoices.of(self.judge_sure(steering.piece, *replayed, lost[None]), made, lost)

    def replayed(
        self, piece: Piece, calls: Rewritten | None
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return what a piece should be, and what the legal ways of rounding make of it."""
        self.count += 1 + len(self.ways(None))
        centre = self.centre(None).target(piece.target, calls)
        return centre, [way.target(piece.target, calls) for way in self.ways(None)]

    def judge_sure(
        self,
        piece: Piece,
        centre: np.ndarray,
        spread: Sequence[np.ndarray],
        unsure: np.ndarray | None,
        lost: np.ndarray | None = None,
    ) -> Judgement:
        """Judge a piece as a tap is, by the tokens (B, L) that are sure, and prove something, and
        by what is not lost.
        """
        port = self.port(piece.target)
        if lost is not None:
            port, centre, *spread = (np.where(lost, 0, one) for one in (port, centre, *spread))
        if (unseen := self.unseen.get(piece.target)) is not None:
            unseen = np.broadcast_to(unseen, (len(port), unseen.shape[1]))
            unsure = unseen if unsure is None else unsure | unseen
        if unsure is not None and not unsure.all():
            port, centre, *spread = (
                self.sure(value, piece, unsure) for value in (port, centre, *spread)
            )
        return judge(port, centre, spread, self.dtype)

    def unsure(self, piece: Piece, calls: Rewritten | None) -> np.ndarray | None:
        """Return the tokens (B, L) of a piece that depend on a choice within the noise."""

        def values(number: int) -> tuple[np.ndarray, Sequence[np.ndarray]]:
            if number in self.dumped:
                return self.dumped[number].astype(np.float64), [self.dumped[number]]
            centre, ways = self.centre(None), self.ways(None)
            return centre.target(number, calls), [way.target(number, calls) for way in ways]

        def chosen(router: int) -> np.ndarray | None:
            wrong = router in (calls or {})
            return self.centre(None).target(router, calls) != 0 if wrong else None

        return unsure_tokens(piece.target, self.routers_of(piece), values, self.graph, chosen)

    def routers_of(self, piece: Piece) -> list[Call]:
        """Return the routers of a piece whose choice the port did not dump."""
        target = piece.target
        if target not in self.routers:
            self.routers[target] = routers_between(target, self.graph, self.dumped, piece.calls)
        return self.routers[target]

    def sure(self, value: np.ndarray, piece: Piece, unsure: np.ndarray) -> np.ndarray:
        """Return the values of the other tokens alone, (N, ...)."""
        axis = self.graph.token_axes[piece.target][0]
        return np.moveaxis(value, axis, 1)[~unsure]

    @np.errstate(all="ignore")
    def looks(self, piece: Piece, some: Sequence[Rewritten], rows: int | None) -> list[Look]:
        """Look at several hypotheses: in a small model they are computed together."""
        values = at_once(self.centre(rows), piece.target, some)
        pairs = zip(some, values, strict=True)
        return [self.look(piece, calls, rows, wrong=wrong) for calls, wrong in pairs]

    @np.errstate(all="ignore")
    def look(
        self,
        piece: Piece,
        calls: Rewritten,
        rows: int | None = None,
        *,
        wrong: np.ndarray | None = None,
    ) -> Look:
        """Return roughly how far the port is from a hypothesis: the centre alone is computed.

        `wrong` is the hypothesis's value where that is known. `rows` says how many tokens are
        computed, None all. Raises nothing: what cannot be computed in this model moves nothing.
        """
        self.count += 1
        right = self.centre(rows).target(piece.target)
        try:
            wrong = self.centre(rows).target(piece.target, calls) if wrong is None else wrong
        except ValueError as error:  # shapes that this model does not have, or too large ones
            pass_on_refusal(error)
            wrong = right
        port, noise = self.port(piece.target, rows), self.relative_noise(piece, rows)
        if wrong.shape != port.shape:
            return nowhere(right.shape[self.graph.token_axes[piece.target][0]])
        if piece.target in self.unseen:
            mark = self.marked(piece.target, right)
            port, wrong = (np.where(mark, right, value) for value in (port, wrong))
        port, wrong, right = (self.tokens(value, piece.target) for value in (port, wrong, right))
        (port, wrong, right), made = with_noughts(port, wrong, right)
        if least := self.least_step(piece.target):
            port = np.where(np.abs(port - wrong) <= STEPS * least, wrong, port)
        careful = not self.routers_of(piece)
        return Look.of(port, wrong, right, noise, careful=careful, made=made)

    def proving(self, value: np.ndarray, target: int) -> np.ndarray:
        """Return the values of the tokens that prove something, each in a row, in float64."""
        tokens = np.moveaxis(value, self.graph.token_axes[target][0], 1)
        unseen = np.broadcast_to(self.unseen.get(target, np.False_), tokens.shape[:2])
        return tokens[~unseen].reshape(-1, prod(tokens.shape[2:])).astype(np.float64)

    def marked(self, target: int, value: np.ndarray) -> np.ndarray:
        """Return the tokens that prove nothing, in a shape that fits a value, or its first rows."""
        count = value.shape[self.graph.token_axes[target][0]]
        return self.graph.along_tokens(self.unseen[target][:, :count], target)

    def least_step(self, target: int) -> float:
        """Return the least difference of two of the port's numbers, where all of them are too small
        to be held with all their bits; 0 if any is larger.

        What is within a few is in the noise, but the quick measure has that as a share of a value.
        """
        if target not in self.faint:
            least, epsilon = SUBNORMAL[self.dtype.name], EPSILONS[self.dtype.name]
            largest = float(np.max(np.abs(self.port(target)), initial=0.0))
            self.faint[target] = least if largest < least / epsilon else 0.0
        return self.faint[target]

    def tokens(self, value: np.ndarray, target: int) -> np.ndarray:
        """Return the values of each token in a row, in float64."""
        value = np.moveaxis(value, self.graph.token_axes[target][0], 0)
        return value.reshape(len(value), -1).astype(np.float64)

    @np.errstate(all="ignore")
    def relative_noise(self, piece: Piece, rows: int | None) -> float:
        """Return the noise of the right computation, relative to what it gives."""
        key = piece.target, rows
        if key not in self.usual:
            centre = finite(self.centre(rows).target(piece.target))
            spread = [way.target(piece.target) for way in self.ways(rows)]
            errors = [np.nan_to_num(difference(way, centre)) for way in spread]
            noise = row_noise(errors, centre, self.dtype)
            usual = float(np.median(noise)) if self.routers_of(piece) else rms(noise)
            self.usual[key] = usual / (rms(centre) or 1.0)
        return self.usual[key]

    @property
    def limit(self) -> float:
        return LIMITS[self.dtype.name].whole
