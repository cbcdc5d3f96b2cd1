"""Tokens that a coarse grid may have rounded to its other side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.parity.judging.judge import finite

TURNED = 0.2  # of the tokens


def turned(own: np.ndarray, spread: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """Return the tokens (B, L) that are the farthest off, where no way of rounding is.

    A value near a tie of a coarse grid falls to one side in the port, and to the other here. `own`
    is the port's error, `spread` that of each way of rounding; `axis` is that of their tokens.
    """
    error, noise = by_token(own, axis), np.max([by_token(one, axis) for one in spread], axis=0)
    share = error / np.maximum(noise, np.median(noise))
    return share > max(np.quantile(share, 1 - TURNED), 1.0)


def by_token(error: np.ndarray, axis: int) -> np.ndarray:
    """Return the root mean square of each token, (B, L)."""
    tokens = np.moveaxis(finite(error), axis, 1)
    return np.sqrt(np.square(tokens).mean(axis=tuple(range(2, tokens.ndim))))
