"""Which convention of rounding a port follows, found by whose bits its own are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Call, Evaluator
from lockstep.parity.graph.graph import Piece
from lockstep.parity.noise import namespace
from lockstep.parity.noise.conventions import SUMS, Choice, choices
from lockstep.reference.precision import rounded

Rewritten = Mapping[int, Call]


def bits(run: Evaluator, piece: Piece, calls: Rewritten, dtype: np.dtype) -> np.ndarray:
    """Return a value as a convention computes it, in the port's dtype."""
    with np.errstate(all="ignore"):
        return rounded(run.target(piece.target, calls), dtype)


def convention_of(
    trial: Trial, pieces: Sequence[tuple[Piece, Rewritten]]
) -> tuple[Evaluator, float]:
    """Return the convention that gives most of the port's bits in some like pieces, and how many.

    Each operation's choice is settled in turn, so that the cost is that of their sum; and once more
    after others were, since a choice may show beside another one alone.
    """
    taken = [choice[0] for choice in choices(trial.dtype)]
    best = evaluator(trial, taken)
    share, before = agreement(best, trial, pieces), -1.0
    open_to = [
        (place, choice)
        for place, choice in enumerate(choices(trial.dtype))
        if concerns(choice, trial, pieces)
    ]
    while before < share < 1:
        before = share
        for place, choice in open_to:
            for other in choice:
                tried = [*taken[:place], other, *taken[place + 1 :]]
                candidate = evaluator(trial, tried)
                found = agreement(candidate, trial, pieces) if other is not taken[place] else share
                if found > share:
                    best, share, taken = candidate, found, tried
    return best, share


def concerns(choice: Choice, trial: Trial, pieces: Sequence[tuple[Piece, Rewritten]]) -> bool:
    """Say whether any operation of a choice is in the pieces."""
    names = {name for one in choice for name in one}
    return any(trial.graph.calls[n].op in names for piece, _ in pieces for n in piece.calls)


def evaluator(trial: Trial, taken: Sequence[dict[str, Any]]) -> Evaluator:
    changed = SUMS | {name: op for part in taken for name, op in part.items()}
    return trial.evaluator(namespace(changed), trial.dtype, None)


def agreement(run: Evaluator, trial: Trial, pieces: Sequence[tuple[Piece, Rewritten]]) -> float:
    """Return the share of the port's values that a convention gives to the bit."""
    same = [
        bits(run, piece, calls, trial.dtype) == trial.port(piece.target) for piece, calls in pieces
    ]
    return float(np.mean(np.concatenate([one.ravel() for one in same])))
