"""The matrix that makes a port's outputs of its inputs, in the directions that these inputs have.

Of tokens that are fewer than the inputs' numbers it is not all of a matrix. Whether any matrix
makes the outputs shows by what is left of them in the tokens beyond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

STEEP = 0.03  # of the longest direction of the inputs: shorter ones are rounding
SPARE = 4  # tokens beyond the directions of inputs that are not the port's own
MANY = 16  # directions whose numbers are as large, which say as much
OFF = 0.1  # of what no matrix makes of rows of no relation to the inputs
ASTRAY = 0.5  # of its own size, that a token may be off what the others show: from short directions
STRAY = 0.25  # of the tokens, at most, for which another value may have been found


@dataclass(frozen=True)
class Inputs:
    """The rows of inputs by their directions (T, R), and how long each of these is.

    `short` is the share of the inputs in directions that are too short to be asked.
    """

    rows: np.ndarray
    lengths: np.ndarray
    short: float

    @classmethod
    def of(cls, x: np.ndarray, least: float = 0.0) -> Inputs | None:
        """Return the directions of inputs (T, K) that are longer than the `least`, None of none."""
        rows, lengths, _ = np.linalg.svd(x.astype(np.float64), full_matrices=False)
        if not lengths.size:
            return None
        long = lengths > max(STEEP * lengths[0], least)
        with np.errstate(invalid="ignore"):  # inputs may be nought
            short = float(np.linalg.norm(lengths[~long]) / np.linalg.norm(lengths))
        return cls(rows[:, long], lengths[long], short)

    def matrix(self, outputs: np.ndarray) -> np.ndarray:
        """Return the matrix (R, N) that makes outputs (T, N), in these directions."""
        return self.rows.T @ outputs / self.lengths[:, None]

    def off(self, outputs: np.ndarray) -> np.ndarray:
        """Return what no matrix makes of outputs (T, N)."""
        return outputs - self.rows @ (self.rows.T @ outputs)

    @np.errstate(all="ignore")  # a port may have noughts alone
    def left_over(self, outputs: np.ndarray) -> float:
        """Return the share of outputs (T, N) that no matrix makes."""
        return float(np.linalg.norm(self.off(outputs)) / np.linalg.norm(outputs))

    def make(self, outputs: np.ndarray) -> bool:
        """Say whether some matrix makes outputs (T, N).

        Of rows that have nothing to do with the inputs, a matrix makes as many as there are
        directions: what is left of them is the root of the share of tokens beyond. So it must be
        far below that, beside the share that random numbers make of `short` directions. Where there
        are hardly more tokens, the matrix says it, by numbers as large in many directions.
        """
        (tokens, directions), left = self.rows.shape, self.left_over(outputs)
        spare = tokens - directions
        if spare < SPARE:
            return directions >= MANY and left <= OFF
        return left <= math.hypot(OFF * math.sqrt(spare / tokens), self.short)

    @np.errstate(all="ignore")
    def strays(self, outputs: np.ndarray) -> np.ndarray:
        """Return how far each token (T,) is from what a matrix makes that the others show, as a
        share of its own size.
        """
        own = 1 - np.square(self.rows).sum(axis=-1)  # a matrix follows a token of its own direction
        return np.linalg.norm(self.off(outputs), axis=-1) / own / np.linalg.norm(outputs, axis=-1)


def agreeing(x: np.ndarray, outputs: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Return the tokens (T,) of inputs (T, K) and outputs (T, N) that do not stray from the matrix
    which the others show, the farthest left out first; all, if too many would be.
    """
    kept = np.arange(len(x))
    for _ in range(int(STRAY * len(x)) + 1):
        inputs = Inputs.of(x[kept], least)
        if inputs is None or len(kept) - len(inputs.lengths) < SPARE:
            break
        strays = inputs.strays(outputs[kept])
        if strays.max() <= ASTRAY:
            return kept
        kept = np.delete(kept, np.argmax(strays))
    return np.arange(len(x))
