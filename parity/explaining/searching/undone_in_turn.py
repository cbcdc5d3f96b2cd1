"""What a value must have been for all layers behind it to end where the port did, token by token.

Behind a bottleneck in an early layer a token hangs on those before it, and on none after it. So the
first token is led back, then the next one beside what was found, as far as a few tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lockstep.parity.explaining.searching.segments import Segments
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.searching.undone import ends_of, nudges, spread
from lockstep.parity.graph.graph import Piece

TOKENS = 8  # that are led back
FEWEST = 2  # of them, that must be found
ASTRAY = 2  # of them, that may be farther than they can be: another value was found there
STEPS = 40
ARRIVED = 3.0  # noises that may be left: there are more logits than numbers that make them
CLOSE = 0.01  # of the logits, that may be left anyway: it is only asked how large a value is
# Of the steepest slope, by which steps are damped. A norm hides its input's size, so along that
# there is no slope, and none of them goes far.
DAMPED = np.array([1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0])
BYTES = 32 << 20  # of all nudged values: a model of real size has more
WORK = 5e10  # products, of all that is nudged and tried, until no more of a piece is led back


@dataclass
class InTurn:
    """One piece of several layers, of which values are led back. `spent` is in products."""

    trial: Trial
    piece: Piece
    spent: float = 0.0

    @np.errstate(all="ignore")  # a broken port may hold anything
    def undone(
        self, cut: int, value: np.ndarray, farthest: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return a value (1, T, N) that leads the first tokens to what the port has at the end of
        the piece, and which tokens (T,) these are.

        Several values may: it is that found first from a given one, and no farther from it than it
        can be, `farthest` (T,). None if few tokens arrive there, or the model is too large for it.
        """
        port = self.trial.port(self.piece.target).astype(np.float64)
        if not self.possible(value, port) or len(farthest) != value.shape[1]:
            return None
        near = max(ARRIVED * self.trial.relative_noise(self.piece, None), CLOSE)
        found, known = value.astype(np.float64).copy(), np.zeros(value.shape[1], bool)
        for token in range(min(TOKENS, value.shape[1])):
            led = self.led_back(cut, found[:, : token + 1], port[0, token], near)
            if led is not None:
                found[0, token] = led
                known[token] = np.linalg.norm(led - value[0, token]) <= farthest[token]
            if np.sum(~known[: token + 1]) > ASTRAY:
                return None
        return (found, known) if known.sum() >= FEWEST else None

    def possible(self, value: np.ndarray, port: np.ndarray) -> bool:
        """Say whether tokens of a value (1, T, N) can be led to the port's (1, T, V)."""
        if value.ndim != 3 or port.ndim != 3 or len(value) != 1 or len(port) != 1:
            return False
        count, wide = min(TOKENS, value.shape[1]), max(value.shape[-1], port.shape[-1])
        small = (value.shape[-1] + 1) * count * wide * 8 <= BYTES
        return small and bool(np.isfinite(port).all())

    def led_back(
        self, cut: int, value: np.ndarray, port: np.ndarray, near: float
    ) -> np.ndarray | None:
        """Go step by step to what the last token of a value (1, t, N) was; None if it stays away
        from there.
        """
        little = nudges(value[:, -1:])[:, 0]
        for _ in range(STEPS):
            ends = self.continued(cut, value, little)
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
            ends = self.continued(cut, value, ways)
            if ends is None:
                return None
            left = np.nan_to_num(np.square(ends - port).sum(-1), nan=np.inf)
            value = value.copy()
            value[0, -1] += ways[np.argmin(left)]
        return None

    def continued(self, cut: int, value: np.ndarray, moves: np.ndarray) -> np.ndarray | None:
        """Return what the rest of the piece makes of the last token (M, V), moved in many ways
        (M, N); None if that is too much work.
        """
        rows, many = value.shape[1], len(moves)
        self.spent += rows * many * self.segments.price
        if self.spent > WORK:
            return None
        values = spread(value, many).copy()
        values[:, -1] += moves
        self.trial.count += 1
        ends = ends_of(self.trial, self.piece, cut, values, rows)
        if ends is None or ends.ndim != 3 or ends.shape[:2] != (many, rows):
            return None
        return ends[:, -1]

    @cached_property
    def segments(self) -> Segments:
        return Segments(self.trial, self.piece, [])


def damped(slopes: np.ndarray, off: np.ndarray) -> np.ndarray:
    """Return steps (M, N) that lessen an error (V,) by its slopes (V, N), the longest one first."""
    left, steep, right = np.linalg.svd(slopes, full_matrices=False)
    least = (DAMPED * steep[0])[:, None]
    return (steep / (steep**2 + least**2) * (left.T @ off)) @ right
