"""Judge a piece as `diff` judges a tap, with some calls rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lockstep.parity.explaining.routing.coarse import turned
from lockstep.parity.explaining.routing.flips import unsure_tokens
from lockstep.parity.explaining.routing.steering import ByChoices, Steering
from lockstep.parity.explaining.searching.look import FAR, MOST_UNSURE
from lockstep.parity.explaining.searching.no_numbers import lost, tokens_of
from lockstep.parity.explaining.searching.runs import Runs
from lockstep.parity.graph.evaluator import Rewritten
from lockstep.parity.graph.graph import Piece
from lockstep.parity.graph.refusals import if_computable
from lockstep.parity.judging.judge import LIMITS, Judgement, finite, judge, row_noise
from lockstep.parity.judging.metrics import difference, rms

UNSURE_BESIDE = 2 / 3  # of the tokens, at most, where the others speak for a bug
NOT_COMPARED = Judgement(FAR, 0.0, FAR, FAR, FAR, False, None)


@dataclass
class Judging(Runs):
    """Pieces, judged in full.

    A router may have sent tokens elsewhere by rounding alone: they are left out, or judged by the
    choices that rounding may have made.
    """

    @np.errstate(all="ignore")  # what a broken port dumps may overflow anywhere
    def judge(
        self, piece: Piece, calls: Rewritten | None = None, *, coarse: bool = False
    ) -> Judgement:
        """Judge a piece as `diff` judges a tap, with some calls rewritten.

        Tokens that a router may have sent elsewhere by rounding alone are left out. `coarse` says
        that the rewritten calls round to a coarser grid than the port's; then some more are.
        """
        if not calls:
            return self.judged(piece, {}, coarse)
        with if_computable():
            return self.judged(piece, calls, coarse)
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
            self.kept.noise[piece.target, None] = judged.noise
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

    @np.errstate(all="ignore")
    def relative_noise(self, piece: Piece, rows: int | None) -> float:
        """Return the noise of the right computation, relative to what it gives."""
        key = piece.target, rows
        if key not in self.kept.noise:
            centre = finite(self.centre(rows).target(piece.target))
            spread = [way.target(piece.target) for way in self.ways(rows)]
            errors = [np.nan_to_num(difference(way, centre)) for way in spread]
            noise = row_noise(errors, centre, self.dtype)
            usual = float(np.median(noise)) if self.routers_of(piece) else rms(noise)
            self.kept.noise[key] = usual / (rms(centre) or 1.0)
        return self.kept.noise[key]

    @property
    def limit(self) -> float:
        return LIMITS[self.dtype.name].whole
