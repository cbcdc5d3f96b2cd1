"""How much a port's error goes the way of what some bugs change.

What rounds coarsely moves numbers by no more than noise. But a port that has it is off by just what
it changes, and noise is in line with that by chance alone.
"""

from __future__ import annotations

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph.evaluator import Rewritten
from lockstep.parity.graph.graph import Piece
from lockstep.parity.graph.refusals import if_computable

SEVERAL = 4  # tokens, of which one more is left out


@np.errstate(all="ignore")  # what a broken port dumps may overflow anywhere
def in_line(trial: Trial, piece: Piece, without: Rewritten, others: Rewritten) -> tuple[float, int]:
    """Return how much of the error without some bugs is what these change, 1 if all of it; and how
    many numbers say so.

    It is the correlation of the two over all numbers, each token's by the size of its row. Tokens
    that prove nothing are left out, and rows that are nothing, or no numbers.
    """
    trial.count += 2
    run, target = trial.centre(None), piece.target
    with if_computable():
        values = trial.port(target), run.target(target, without), run.target(target, others)
        port, left, wrong = (trial.proving(value, target) for value in values)
        size = np.sqrt(np.mean(left**2, axis=-1, keepdims=True))
        far, way = (port - left) / size, (wrong - left) / size
        told = np.isfinite(far).all(axis=-1) & np.isfinite(way).all(axis=-1)
        far, way = but_loudest(far[told], way[told])
        found = np.sum(far * way) / np.sqrt(np.sum(far**2) * np.sum(way**2))
        return float(np.nan_to_num(found)), far.size
    return 0.0, 0


def but_loudest(error: np.ndarray, way: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leave out the one of several rows (T, N) that says most: where two keys are as near as a
    rounding, softmax throws a token from one to the other, whatever the reason.
    """
    if len(error) < SEVERAL:
        return error, way
    loudest = np.argmax(np.sum(error**2, axis=-1) * np.sum(way**2, axis=-1))
    return np.delete(error, loudest, axis=0), np.delete(way, loudest, axis=0)
