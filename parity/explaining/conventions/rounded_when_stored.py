"""A port that computed in float32 and rounded what it dumped: its values were made of finer ones.

What a port in half precision adds up is, to the bit, the rounded sum of what it dumped. Where sums
are right but for their last bits, they were made before anything was rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lockstep.parity.explaining.case import Case, Progress
from lockstep.parity.explaining.conventions.stored import WIDE, everywhere, store_coarsely
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph.graph import Piece
from lockstep.parity.judging.judge import EPSILONS, FLOAT32_SMALLEST, SMALLEST
from lockstep.reference.precision import rounded

SUMS = {"add", "gain"}  # Gemma 4 scales what a layer adds up
OWN_SUMS = 0.9  # of the bits of its sums, at least, that a port in half precision has
ENOUGH = 64  # numbers of sums
STORED = "computed in finer numbers than {dtype}, which its values were rounded to when stored"


def sort_as_stored(case: Case, progress: Progress) -> Iterator[str]:
    """Say so if right sums show that values were rounded when stored; judge what is wrong again.

    What was rounded off then counts as noise, and weights are taken as float32 holds them.
    """
    trial = case.trial
    if (trial.own and not trial.remade) or not sums_of_finer_numbers(trial, case.right):
        return
    store_coarsely(trial, everywhere(Half(trial.dtype)))
    if case.wrong:
        sort_again(case, progress)
    yield STORED.format(dtype=trial.dtype.name)


def sort_again(case: Case, progress: Progress) -> None:
    """Tell the right pieces from the wrong ones by another noise."""
    case.right.clear()
    case.wrong.clear()
    case.sort(progress)


@np.errstate(all="ignore")  # a broken port may hold anything
def sums_of_finer_numbers(trial: Trial, right: list[Piece]) -> bool:
    """Say whether sums that are right lack the bits of those of the dumped values."""
    if trial.dtype.itemsize > 2:
        return False
    same = own_sums(trial, right)
    return same is not None and same < OWN_SUMS


def own_sums(trial: Trial, pieces: list[Piece]) -> float | None:
    """Return the share of the bits of their sums that pieces have; None if few numbers tell."""
    same = [bits_of_sum(trial, one) for one in pieces if sums_alone(trial, one)]
    every = np.concatenate([np.zeros(0, bool), *same])
    return float(np.mean(every)) if every.size >= ENOUGH else None


def sums_alone(trial: Trial, piece: Piece) -> bool:
    """Say whether a piece is sums of what the port dumped, to the bit, and nothing else."""
    known = {piece.target}.union(*map(trial.graph.sources, piece.calls))
    if not known.isdisjoint(trial.remade):
        return False
    return all(trial.graph.calls[number].op in SUMS for number in piece.calls)


def bits_of_sum(trial: Trial, piece: Piece) -> np.ndarray:
    """Say of each number in half precision whether it is the rounded sum of what was dumped."""
    port = trial.proving(trial.port(piece.target), piece.target)
    plain = trial.ways(None)[0].target(piece.target)
    same = port == trial.proving(rounded(plain, trial.dtype), piece.target)
    return same[held(port, trial.dtype)]


def held(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Say of each number whether a dtype holds it."""
    return rounded(value, dtype).astype(value.dtype) == value


@dataclass(frozen=True)
class Half:
    """Numbers of half precision."""

    dtype: np.dtype

    def rounded(self, value: np.ndarray) -> np.ndarray:
        return rounded(value, self.dtype)

    @np.errstate(all="ignore")
    def step(self, value: np.ndarray) -> np.ndarray:
        _, exponents = np.frexp(value)
        step = np.ldexp(WIDE.type(EPSILONS[self.dtype.name]), exponents - 1)
        least = WIDE.type(SMALLEST.get(self.dtype.name, FLOAT32_SMALLEST))
        return np.where(held(value, self.dtype), np.maximum(step, least), WIDE.type(0))
