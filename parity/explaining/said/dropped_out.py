"""A dropout that was left on: some numbers are nought, the others larger by one over what is kept.

Which numbers fell nobody can foresee, so no bug of the catalogue explains them. But each is one of
two: nought, or x / (1 - p). Of a sum that is so of each branch that is added to the stream, or
of one.
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Evaluator, Value
from lockstep.parity.graph.graph import Piece
from lockstep.parity.judging.judge import EPSILONS

USUAL = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)  # the rates that models are trained with
ROUNDINGS = 8.0  # half steps of the port's dtype that a number may be off
OTHERS = 1e-3  # of the numbers, that may be neither
ERRORS = 5.0  # standard errors that the share of what fell may be off the rate
SAID = (
    "dropout: {fallen:.1%} nought and the rest over {kept:g}, as of p = {rate:g} in training mode"
)


@np.errstate(all="ignore")  # a broken port may hold anything
def dropped_out(trial: Trial, piece: Piece) -> str | None:
    """Say that a value went through a dropout, if each of its numbers did or fell."""
    run, port = trial.centre(None), trial.port(piece.target).astype(np.float64)
    stream, branches = parts(run, piece, trial)
    if any(one.shape != port.shape for one in branches):
        return None
    size = np.abs(stream) + np.abs(np.stack(branches)).sum(axis=0)
    near = ROUNDINGS * EPSILONS[trial.dtype.name] * (size + usual(size))
    said: dict[float, str] = {}
    for rate, some in product(USUAL, subsets(branches)):
        whole = stream + sum(one for one in branches if not any(one is other for other in some))
        fallen, off = share_fallen(port - whole, some, 1 - rate, near)
        if fallen is not None and is_by_chance(fallen, rate, port.size * len(some)):
            said.setdefault(off, SAID.format(fallen=fallen, kept=1 - rate, rate=rate))
    return said[min(said)] if said else None


def subsets(branches: list[np.ndarray]) -> list[list[np.ndarray]]:
    """Return which branches may have gone through a dropout: all, or some of them."""
    counts = range(len(branches), 0, -1)
    return [[*some] for count in counts for some in combinations(branches, count)]


def usual(size: np.ndarray) -> np.ndarray:
    """Return the root of the mean square of each token: a sum that is near nought is off by as much
    as another one.
    """
    return np.sqrt(np.mean(size**2, axis=-1, keepdims=True))


def parts(run: Evaluator, piece: Piece, trial: Trial) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the stream of a sum and the branches that are added to it; of no sum all is one."""
    number, branches = piece.target, []
    call = trial.graph.calls[number]
    while call.op == "add" and call.layer is not None and number in piece.calls:
        stream, branch = call.inputs
        assert isinstance(stream, Value) and isinstance(branch, Value)
        branches.append(run.given(branch.number))
        number, call = stream.number, trial.graph.calls[stream.number]
    if not branches:
        return np.zeros(()), [run.target(piece.target)]
    return run.given(number), branches


def share_fallen(
    port: np.ndarray, branches: list[np.ndarray], kept: float, near: np.ndarray
) -> tuple[float | None, float]:
    """Return the share of numbers that fell, None if the port's are not each kept or fallen; and
    how far they are from that together.
    """
    ways = [*product((1.0, 0.0), repeat=len(branches))]
    sums = [
        sum(one * branch / kept for one, branch in zip(way, branches, strict=True)) for way in ways
    ]
    off = np.stack([np.abs(port - one) for one in sums])
    best, least = off.argmin(axis=0), off.min(axis=0)
    told = ~(np.abs(np.stack(sums[1:]) - sums[0]) <= near).any(axis=0)  # where it shows
    if np.mean(least > near) > OTHERS or not told.any():
        return None, float(least.sum())
    gone = np.array([way.count(0.0) / len(way) for way in ways])
    return float(gone[best][told].mean()), float(least.sum())


def is_by_chance(fallen: float, rate: float, numbers: int) -> bool:
    """Say whether so many may have fallen, of so many numbers; one at least did."""
    error = np.sqrt(rate * (1 - rate) / numbers)
    return fallen > 0 and abs(fallen - rate) <= ERRORS * error
