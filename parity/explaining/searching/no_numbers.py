"""What is no number in a port, and would be none in a replay: what else there is tells the rest.

A bug may make NaN or infinities, and so is whatever is computed from them. A port that has them
exactly where a replay of its own inputs has them is right there, or has that bug: its numbers
decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lockstep.parity.explaining.searching.trial import Trial
    from lockstep.parity.graph.graph import Piece

MOST_LOST = 0.9  # of the tokens, beside which the others still tell of a bug


def tells(piece: Piece, trial: Trial) -> bool:
    """Say whether a port has a number anywhere in a piece, or should have one."""
    if np.isfinite(trial.port(piece.target)).any():
        return True
    return bool(np.isfinite(trial.centre(None).target(piece.target)).any())


def lost_cells(
    port: np.ndarray, right: np.ndarray, made: np.ndarray, *, axis: int, spoilt: bool
) -> np.ndarray | None:
    """Return what is no number in a port as in what is `made`, with a bug or without: for the bug,
    or since another value of the dump is `spoilt`. None if nothing is, and with a bug if most
    tokens, along `axis`, have some.

    Of what is spoilt already the order of a sum decides whether it is infinite or NaN.
    """
    if made.shape != port.shape:
        return None
    by_bug = np.isfinite(right) & alike(port, made)
    lost = ~np.isfinite(port) & (by_bug | (spoilt & ~np.isfinite(made)))
    most = 1.0 if made is right else MOST_LOST
    return lost if 0 < tokens_of(lost, axis).mean() <= most else None


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
    it. If most are such, they tell nothing, and the three are returned as they are.
    """
    lost = ~np.isfinite(port)
    tokens = lost.any(axis=-1, keepdims=True)
    if not tokens.any() or tokens.mean() > MOST_LOST:
        return [port, wrong, right], 0
    same = np.where(lost, alike(port, wrong), np.isfinite(wrong)).all(axis=-1)
    made = same & (lost & np.isfinite(right)).any(axis=-1)
    return [np.where(tokens, 0.0, value) for value in (port, wrong, right)], int(made.sum())


def alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one == other) | (np.isnan(one) & np.isnan(other))
