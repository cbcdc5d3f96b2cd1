"""What is no number in a port, and would be none in a replay: what else there is tells the rest.

A bug may make NaN or infinities, and so is whatever is computed from them. A port that has them
exactly where a replay of its own inputs has them is right there, or has that bug: its numbers
decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lockstep.parity.explaining.searching.runs import Runs
    from lockstep.parity.graph.graph import Call, Piece

MOST_LOST = 0.9  # of the tokens, beside which the others still tell of a bug
FEW = 0.25  # of all numbers, beside which those of the same tokens tell


def tells(piece: Piece, trial: Runs) -> bool:
    """Say whether a port has a number anywhere in a piece, or should have one."""
    if np.isfinite(trial.port(piece.target)).any():
        return True
    return bool(np.isfinite(trial.centre(None).target(piece.target)).any())


def lost(piece: Piece, trial: Runs, calls: Mapping[int, Call]) -> np.ndarray | None:
    """Return what of a piece, some calls of it rewritten, is no number just as it should be: see
    `lost_cells`.
    """
    target, replay = piece.target, trial.centre(None).target
    if trial.finite(target):
        return None
    right = replay(target)
    made = replay(target, calls) if calls else right
    axis, spoilt = trial.graph.token_axes[target][0], made_of_nan(piece, trial, calls, made)
    return lost_cells(trial.port(target), right, made, axis=axis, spoilt=spoilt)


def made_of_nan(
    piece: Piece, trial: Runs, calls: Mapping[int, Call], made: np.ndarray
) -> np.ndarray | None:
    """Return what a piece is `made` of with NaN for each infinity that it takes; None if all that
    it takes are numbers.
    """
    bad = {one: trial.dumped[one] for one in taken(piece, trial) if not trial.finite(one)}
    infinite = {
        number: np.where(np.isinf(value), value.dtype.type(np.nan), value)
        for number, value in bad.items()
        if np.isinf(value).any()
    }
    if not infinite:  # NaN makes NaN of itself
        return made if bad else None
    return trial.over(infinite).centre(None).target(piece.target, calls)


def taken(piece: Piece, trial: Runs) -> set[int]:
    """Return the dumped values that a piece is computed from."""
    sources = map(trial.graph.sources, piece.calls)
    return {number for some in sources for number in some if number in trial.dumped}


def lost_cells(
    port: np.ndarray,
    right: np.ndarray,
    made: np.ndarray,
    *,
    axis: int,
    spoilt: np.ndarray | None = None,
) -> np.ndarray | None:
    """Return what is no number in a port as in what is `made`, with a bug or without: for the bug,
    or since another value of the dump is no number. None if nothing is, and with a bug if most
    tokens, along `axis`, have some, and not only few of their numbers.

    `spoilt` is what is made of such values, with NaN for each infinity: the order of a sum decides
    whether that stays infinite, and the engine whether SiLU makes the limit of it or NaN.
    """
    if made.shape != port.shape:
        return None
    by_bug = np.isfinite(right) & alike(port, made)
    already = np.False_ if spoilt is None else ~np.isfinite(spoilt)
    lost = ~np.isfinite(port) & (by_bug | already)
    few = made is right or tokens_of(lost, axis).mean() <= MOST_LOST or lost.mean() <= FEW
    return lost if lost.any() and few else None


def tokens_of(lost: np.ndarray, axis: int) -> np.ndarray:
    """Return the tokens (B, L), along an axis, that lost something."""
    tokens = np.moveaxis(lost, axis, 1)
    return np.asarray(tokens.reshape(*tokens.shape[:2], -1).any(axis=-1))


def with_noughts(
    port: np.ndarray, wrong: np.ndarray, right: np.ndarray
) -> tuple[list[np.ndarray], int]:
    """Return the three (T, N) with noughts for the tokens of which the port has not every number;
    and how many of these a bug makes so, where right arithmetic has numbers.

    Such a token is as far from any bug as from any other: the others tell them apart, and who makes
    it. If most are such, it is so with their single numbers; and if these are many, they tell
    nothing, and the three are returned as they are.
    """
    lost = ~np.isfinite(port)
    tokens = lost.any(axis=-1, keepdims=True)
    many = tokens.mean() > MOST_LOST
    if not tokens.any() or (many and lost.mean() > FEW):
        return [port, wrong, right], 0
    same = np.where(lost, alike(port, wrong), np.isfinite(wrong)).all(axis=-1)
    made = same & (lost & np.isfinite(right)).any(axis=-1)
    nought = lost if many else tokens
    return [np.where(nought, 0.0, value) for value in (port, wrong, right)], int(made.sum())


def alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one == other) | (np.isnan(one) & np.isnan(other))
