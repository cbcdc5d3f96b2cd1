"""What is no number in a port, and would be none in a replay: tokens that tell where it was made.

A bug may make NaN, and whatever is computed from NaN is NaN. So a port that has NaN exactly where a
replay of its own inputs has it is right there, or has that bug; its other tokens decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lockstep.parity.explaining.searching.trial import Trial
    from lockstep.parity.graph.graph import Piece

MOST_LOST = 0.9  # of the tokens, beside which the others still tell of a bug


def tells(piece: Piece, trial: Trial) -> bool:
    """Say whether a port has anything but NaN in a piece, or should have."""
    port, right = trial.port(piece.target), trial.centre(None)
    return not (np.isnan(port).all() and np.isnan(right.target(piece.target)).all())


def lost_tokens(
    port: np.ndarray, right: np.ndarray, made: np.ndarray, *, axis: int, spoilt: bool
) -> np.ndarray | None:
    """Return the tokens (B, L), along `axis`, that are NaN in a port just as in what is `made`,
    with a bug or without: for the bug, or since another value of the dump is `spoilt`. None if none
    are, or all; with a bug too if most are.
    """
    reason = np.isfinite(right) | spoilt
    marks = np.isnan(made) & reason, np.isnan(made) == np.isnan(port)
    tokens = (np.moveaxis(one, axis, 1) for one in marks)
    lost, same = (one.reshape(*one.shape[:2], -1) for one in tokens)
    found = np.asarray(lost.any(axis=-1) & same.all(axis=-1))
    most = 1.0 if made is right else MOST_LOST
    return found if 0 < found.mean() <= most and not found.all() else None


def with_noughts(
    port: np.ndarray, wrong: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the three with a nought for what is no number in the port, and the same in another.

    So a bug that makes no numbers where the port has none leads there, and whatever the port's own
    inputs spoil is as far from any bug as from any other. If most tokens are spoilt, so are the
    three: they tell nothing.
    """
    lost = ~np.isfinite(port)
    if not lost.any() or lost.any(axis=-1).mean() > MOST_LOST:
        return port, wrong, right
    wrong, right = (np.where(lost & alike(port, value), 0.0, value) for value in (wrong, right))
    return np.where(lost, 0.0, port), wrong, right


def alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one == other) | (np.isnan(one) & np.isnan(other))
