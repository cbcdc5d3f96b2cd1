"""Find the choices that a port's routers made, where rounding may turn any of them.

A token that depends on a choice within the noise is left out, as long as others do not. If all of
them do, as in a dump of the logits alone, the choices are looked for instead: token by token, since
none depends on a later one; where a bug lets them, of all tokens together. A token that is off is
tried with one near choice after another turned. A port is right if some legal choices make it so,
and hardly a token of it goes unseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from lockstep.parity.explaining.routing.flips import reach_of_rounding
from lockstep.parity.explaining.routing.together import Forced, settle_together
from lockstep.parity.graph import Call, Evaluator
from lockstep.parity.graph.batched import at_once
from lockstep.parity.graph.evaluator import Rewritten
from lockstep.parity.graph.graph import Piece
from lockstep.parity.graph.refusals import if_computable
from lockstep.parity.judging.judge import EPSILONS, Judgement, row_rms

OFF = 1.5  # noises by which a token is off, to be looked at
FAR = 2.5  # and to be given up, if no turned choice helps
BETTER = 0.7  # of a token's error that may be left, for a choice to be the port's
LOST = 0.1  # of the tokens, besides one, that may be given up
SOME = 2  # tokens that are looked at before two choices of one are turned at once
MANY = 600  # computations that right arithmetic may take for two choices of one of these
ANOTHER = 1e-9  # of a value's size: more than float64 makes of another order
STEP = 2.0**-20  # by which scores must differ, for float32 to tell them apart


@dataclass(frozen=True, eq=False)
class ByChoices(Judgement):
    """What came of a piece with the choices of its routers that were found, but for lost tokens
    (T,).
    """

    made: Forced
    lost: np.ndarray

    @classmethod
    def of(cls, judged: Judgement, made: Forced, lost: np.ndarray) -> ByChoices:
        return cls(**vars(judged), made=made, lost=lost)


@dataclass
class Steering:
    """One piece, with some of its calls rewritten, and the choices that its routers must make.

    `exact` is the centre that it is judged by, `first` that of the first token alone, `ways` are
    how rounding may move it; `count` says how many values were computed.
    """

    piece: Piece
    calls: Rewritten
    routers: Sequence[Call]
    exact: Evaluator
    first: Evaluator
    ways: Sequence[Evaluator]
    forced: Forced = field(default_factory=dict)
    near: dict[int, np.ndarray] = field(default_factory=dict)  # (B, L) that rounding may close
    noise: float = 0.0
    count: int = 0

    def settle(self) -> np.ndarray | None:
        """Find the choices; return which tokens (T,) are given up, None if too many are."""
        self.measure()
        return self.settle_at_once() if self.sees_later_tokens else self.settle_in_turn()

    def settle_at_once(self) -> np.ndarray | None:
        """Find the choices of all tokens together."""
        errors = settle_together(self)
        if errors is None:
            return None
        lost = ~(errors <= FAR * self.noise)
        return None if lost.sum() > 1 + LOST * len(lost) else lost

    def settle_in_turn(self) -> np.ndarray | None:
        """Find the choices of one token after the other.

        Two of a token may be turned as well, as long as hardly one is given up. Of the first tokens
        right arithmetic alone may: it is asked for but once, and no bug shall reach what it was not
        let to.
        """
        errors = self.errors(self.forced)
        lost = np.zeros(len(errors), bool)
        for token in range(len(errors)):
            late = token >= SOME
            deep = lost.sum() <= LOST * token if late else not self.calls
            while self.off(errors)[token]:
                turned = self.best_turn(token, errors[token], deep=deep)
                if turned is None:
                    break
                self.forced, errors = turned
            lost[token] = not errors[token] <= FAR * self.noise
            if lost.sum() > 1 + LOST * token:
                return None
        return lost

    @property
    def sees_later_tokens(self) -> bool:
        """Say whether the first token is another one where later tokens are missing."""
        target, axis = self.piece.target, self.exact.graph.token_axes[self.piece.target][0]
        with if_computable():  # of one token
            alone, among_all = self.first.target(target, self.calls), self.centre(target, {})
            moved = np.abs(alone - among_all.take([0], axis=axis)).max()
            return bool(moved > ANOTHER * np.abs(among_all).max())
        return False

    def measure(self) -> None:
        """Measure how far rounding moves the piece, and its routers' scores, if it turns none."""
        for router in self.routers:
            free = router.number not in self.forced
            if free and self.call(router.number).instead is None:
                shape = self.exact.graph.shapes[router.number]
                self.forced[router.number] = np.zeros(shape, np.int8)
        calls = self.every_choice()
        for number in self.forced:
            scores = self.scores(number)
            self.near[number] = reach_of_rounding(self.centre(scores), self.spread(scores, calls))
        right = self.centre(self.piece.target)
        errors = [self.relative(way, right) for way in self.spread(self.piece.target, calls)]
        self.noise = float(np.median(np.max(errors, axis=0)))

    def every_choice(self) -> Rewritten:
        """Return the calls with all choices forced that the centre makes, so that any way does."""
        return self.steered(self.made())

    def made(self) -> Forced:
        """Return which experts the centre takes of each router, and which it does not."""
        weights = {number: self.centre(number) for number in self.forced}
        return {n: np.where(one != 0, 1, -1).astype(np.int8) for n, one in weights.items()}

    def legal(self, lost: np.ndarray) -> bool:
        """Say whether rounding may make all choices that are forced. What it may not of those of
        lost tokens (T,) is forced no more, since later tokens see what comes of it.
        """
        self.measure()
        wrong = self.illegal()
        while any((one & lost).any() for one in wrong.values()):
            for number, one in wrong.items():
                let_go = (one & lost)[..., None]
                self.forced[number] = np.where(let_go, np.int8(0), self.forced[number])
            self.measure()
            wrong = self.illegal()
        return not any(one.any() for one in wrong.values())

    def illegal(self) -> dict[int, np.ndarray]:
        """Return of each router the tokens (B, L) whose forced choice rounding may not make."""
        found = {}
        for number, forced in self.forced.items():
            scores = self.centre(self.scores(number))
            lowest = np.where(forced > 0, scores, np.inf).min(axis=-1)
            highest = np.where(forced < 0, scores, -np.inf).max(axis=-1)
            free = ~forced.any(axis=-1)
            found[number] = ~(free | (highest - lowest <= self.near[number]))
        return found

    def best_turn(
        self, token: int, error: float, *, deep: bool
    ) -> tuple[Forced, np.ndarray] | None:
        """Turn the choice of a token, or two if `deep`, that leaves least of its error.

        Return the choices and what all tokens are off by then, None if no turn helps much.
        """
        once = self.measured(self.turns(token, self.forced))
        found = min(once, key=lambda entry: entry[1][token], default=None)
        if deep and (found is None or not found[1][token] < BETTER * error):
            twice = (two for one, _ in once for two in self.turns(token, one))
            most = None if token >= SOME else MANY
            once += self.measured(islice(twice, most))
            found = min(once, key=lambda entry: entry[1][token], default=None)
        return found if found and found[1][token] < BETTER * error else None

    def measured(self, some: Iterable[Forced]) -> list[tuple[Forced, np.ndarray]]:
        """Return choices with what all tokens are off by; in a small model computed together."""
        every, target = [*some], self.piece.target
        values = at_once(self.exact, target, [self.steered(one) for one in every])
        port = self.exact.dumped[target]
        self.count += sum(value is not None for value in values)
        return [
            (one, self.errors(one) if value is None else self.relative(port, value))
            for one, value in zip(every, values, strict=True)
        ]

    def turns(self, token: int, forced: Forced) -> Iterator[Forced]:
        """Yield the choices with one of a token's turned, for each two experts that are near."""
        for number, choices in forced.items():
            _, pairs = self.near_pairs(number, forced)
            for row, _, out, into in pairs[pairs[:, 1] == token]:
                other = choices.copy()
                other[row, token, [out, into]] = -1, 1
                yield forced | {number: other}

    def near_pairs(self, number: int, forced: Forced) -> tuple[np.ndarray, np.ndarray]:
        """Return how far apart two experts are whose choice may turn, (P,), and of which row,
        which token, which is chosen, and which is not, (P, 4).
        """
        scores, weights = (self.centre(one, forced) for one in (self.scores(number), number))
        apart = scores[..., :, None] - scores[..., None, :]
        near = apart <= self.near[number][..., None, None]
        near &= (weights != 0)[..., :, None] & (weights == 0)[..., None, :]
        return apart[near], np.argwhere(near)

    def call(self, number: int) -> Call:
        return self.calls.get(number) or self.exact.graph.calls[number]

    def scores(self, number: int) -> int:
        """Return the number of what a router chooses by."""
        (scores,) = self.exact.graph.sources(number)
        return scores

    def steered(self, forced: Forced) -> Rewritten:
        """Return the rewritten calls, those of the routers with their choices forced."""
        return dict(self.calls) | {
            number: self.call(number).with_changed(0, partial(pushed, forced=wanted))
            for number, wanted in forced.items() if wanted.any()
        }  # fmt: skip

    def centre(self, number: int, forced: Forced | None = None) -> np.ndarray:
        """Compute a value in float64, with the choices that are forced."""
        self.count += 1
        return self.exact.target(number, self.steered(self.forced if forced is None else forced))

    def spread(self, number: int, calls: Rewritten) -> list[np.ndarray]:
        """Compute a value in every legal way."""
        self.count += len(self.ways)
        return [way.target(number, calls) for way in self.ways]

    def errors(self, forced: Forced) -> np.ndarray:
        """Return how far the port is off with some choices, token by token, (T,)."""
        target = self.piece.target
        return self.relative(self.exact.dumped[target], self.centre(target, forced))

    def off(self, errors: np.ndarray) -> np.ndarray:
        """Return which tokens are off by more than noise, (T,)."""
        return errors > OFF * self.noise

    def relative(self, value: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return how far a value is off, relative to the right one, token by token, (T,)."""
        axis = self.exact.graph.token_axes[self.piece.target][0]
        value, right = (
            np.moveaxis(one, axis, 0).reshape(one.shape[axis], -1).astype(np.float64)
            for one in (value, right)
        )
        return (row_rms(value - right) / row_rms(right))[..., 0]


def pushed(ops: Any, scores: np.ndarray, *, forced: np.ndarray) -> np.ndarray:
    """Move scores (B, L, X) by as little as makes the forced experts chosen, and the others not."""
    forced = forced[:, : scores.shape[1]]
    wide = scores.astype(np.float64)
    lowest = np.where(forced > 0, wide, np.inf).min(axis=-1, keepdims=True)
    highest = np.where(forced < 0, wide, -np.inf).max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # nothing is forced there
        middle = (lowest + highest) / 2
    step = np.maximum(EPSILONS[scores.dtype.name] * np.abs(middle), STEP)
    crossed = lowest <= highest
    wide = np.where(crossed & (forced > 0), np.maximum(wide, middle + step), wide)
    wide = np.where(crossed & (forced < 0), np.minimum(wide, middle - step), wide)
    return wide.astype(scores.dtype)
