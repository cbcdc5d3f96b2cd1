"""Which calls of a piece the first token shows.

Alone it sees one key, whatever the scores: rope, masks and all that only moves scores stay unseen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph.graph import Piece


def shown_by_first_token(trial: Trial, piece: Piece) -> frozenset[int]:
    """Return the calls that the first token's value depends on, found by shaking each of them."""
    right = trial.centre(1).target(piece.target)
    found = set()
    for number in piece.calls:
        call = trial.graph.calls[number]
        shaken = trial.centre(1).target(piece.target, {number: call.followed(shake)})
        if not np.array_equal(right, shaken, equal_nan=True):
            found.add(number)
    return frozenset(found)


def shake(ops: Any, value: np.ndarray) -> np.ndarray:
    """Move every number a little, each by another factor; what is not a number stays."""
    if value.dtype.kind != "f" or not value.size:
        return value
    factors = 1 + 0.01 * np.cos(np.arange(value.size)).reshape(value.shape)
    return (value * factors).astype(value.dtype)
