"""What a value must have been for all layers behind it to end where the port did, token by token.

Behind a bottleneck in an early layer a token hangs on those before it, and on none after it. So the
first token is led back, then the next one beside what was found, as far as a few tokens.
"""

from __future__ import annotations

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.searching.undone import NUDGE, spread
from lockstep.parity.graph import Evaluator
from lockstep.parity.graph.graph import Piece
from lockstep.parity.noise.exact import FLOAT64

TOKENS = 8  # that are led back
ASTRAY = 2  # of them, that may be farther than they can be: another value was found there
STEPS = 40
ARRIVED = 3.0  # noises that may be left: there are more logits than numbers that make them
CLOSE = 0.01  # of the logits, that may be left anyway: it is only asked how large a value is
# Of the steepest slope, by which steps are damped. A norm hides its input's size, so along that
# there is no slope, and none of them goes far.
DAMPED = np.array([1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0])
BYTES = 32 << 20  # of all nudged values: a model of real size has more


@np.errstate(all="ignore")  # a broken port may hold anything
def undone_in_turn(
    trial: Trial, piece: Piece, cut: int, value: np.ndarray, farthest: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a value (1, T, N) that leads the first tokens to what the port has at the end of a
    piece, and which tokens (T,) these are.

    Several values may: it is that found first from a given one, and no farther from it than it can
    be, `farthest` (T,). None if few tokens arrive there, or the model is too large for it.
    """
    port = trial.port(piece.target).astype(np.float64)
    if value.ndim != 3 or port.ndim != 3 or len(value) != 1 or len(port) != 1:
        return None
    if len(farthest) != value.shape[1]:
        return None
    count = min(TOKENS, value.shape[1])
    wide = max(value.shape[-1], port.shape[-1])
    if (value.shape[-1] + 1) * count * wide * 8 > BYTES or not np.isfinite(port).all():
        return None
    found, near = (
        value.astype(np.float64).copy(),
        max(ARRIVED * trial.relative_noise(piece, None), CLOSE),
    )
    known = np.arange(value.shape[1]) < count
    for token in range(count):
        led = led_back(trial, piece, cut, found[:, : token + 1], port[0, token], near)
        if led is not None:
            found[0, token] = led
        there = led is not None and np.linalg.norm(led - value[0, token]) <= farthest[token]
        known[token] = there
        if np.sum(~known[: token + 1]) > ASTRAY:
            return None
    return found, known


def led_back(
    trial: Trial, piece: Piece, cut: int, value: np.ndarray, port: np.ndarray, near: float
) -> np.ndarray | None:
    """Go step by step to what the last token of a value (1, t, N) was; None if it stays away."""
    width, size = value.shape[-1], float(np.sqrt(np.mean(value[0, -1] ** 2)))
    little = NUDGE * (size or 1.0) * np.vstack([np.zeros(width), np.eye(width)])
    for _ in range(STEPS):
        ends = continued(trial, piece, cut, value, little)
        if ends is None or not np.isfinite(ends).all():
            return None
        off = port - ends[0]
        if np.linalg.norm(off) <= near * np.linalg.norm(port):
            return value[0, -1]
        slopes = (ends[1:] - ends[0]).T / little.max()
        if not np.isfinite(slopes).all() or not slopes.any():
            return None
        try:
            ways = damped(slopes, off)
        except np.linalg.LinAlgError:
            return None
        ends = continued(trial, piece, cut, value, ways)
        if ends is None:
            return None
        left = np.nan_to_num(np.square(ends - port).sum(-1), nan=np.inf)
        value = value.copy()
        value[0, -1] += ways[np.argmin(left)]
    return None


def damped(slopes: np.ndarray, off: np.ndarray) -> np.ndarray:
    """Return steps (M, N) that lessen an error (V,) by its slopes (V, N), the longest one first."""
    left, steep, right = np.linalg.svd(slopes, full_matrices=False)
    least = (DAMPED * steep[0])[:, None]
    return (steep / (steep**2 + least**2) * (left.T @ off)) @ right


def continued(
    trial: Trial, piece: Piece, cut: int, value: np.ndarray, moves: np.ndarray
) -> np.ndarray | None:
    """Return what the rest of a piece makes of the last token (M, V), moved in many ways (M, N)."""
    rows, many = value.shape[1], len(moves)
    values = spread(value, many).copy()
    values[:, -1] += moves
    run = Evaluator(trial.graph, trial.centre(None).ops, FLOAT64, {cut: values}, trial.read, rows)
    trial.count += 1
    try:
        ends = run.target(piece.target)
    except ValueError:  # such as a router's choice, made for one row of a batch
        return None
    return ends[:, -1] if ends.ndim == 3 and ends.shape[:2] == (many, rows) else None
