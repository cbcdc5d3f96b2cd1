"""Values that are read multiplied by what a port has elsewhere: what rounds them is not the port's.

A port in half precision has the factor in its weights, or in what comes next, and rounds there. The
product that is read in its place may be rounded up or down.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lockstep.parity.explaining.conventions.readings import Values
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Evaluator
from lockstep.parity.noise import ways

DRAWS = 2  # of how products may be rounded


def over(trial: Trial, products: Values) -> Trial:
    """Return the trial of a dump that has some products in place of its values."""
    other = trial.over(as_dumped(trial, products))
    other.also = [*trial.also, *round_otherwise(trial, products)]
    return other


def as_dumped(trial: Trial, products: Values) -> Values:
    """Return products in the dtypes of the values that they stand for."""
    return {number: value.astype(trial.dumped[number].dtype) for number, value in products.items()}


def round_otherwise(trial: Trial, products: Values) -> list[Callable[[Any, int | None], Evaluator]]:
    """Return ways of half precision to round products, of which each number is rounded by chance.

    None are needed of finer numbers, whose factors weights hold well enough.
    """
    if trial.dtype.itemsize > 2:
        return []
    return [partial(by_chance, products=products, draw=draw) for draw in range(DRAWS)]


def by_chance(trial: Trial, rows: int | None, *, products: Values, draw: int) -> Evaluator:
    namespace, dtype = ways(trial.dtype)[0]
    dumped = trial.own[0] if trial.own else trial.dumped
    drawn = {
        number: up_or_down(value, trial.dumped[number].dtype, np.random.default_rng([draw, number]))
        for number, value in products.items()
    }
    return Evaluator(trial.graph, namespace, dtype, dumped | drawn, trial.read, rows, trial.seen)


@np.errstate(all="ignore")  # a broken port may hold anything
def up_or_down(value: np.ndarray, dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Round numbers to one of the two next to each, the likelier the nearer it is."""
    near = value.astype(dtype)
    far = np.nextafter(near, np.where(value > near, np.inf, -np.inf).astype(dtype))
    error, gap = (np.abs(one.astype(np.float64) - near.astype(np.float64)) for one in (value, far))
    return np.where(rng.random(value.shape) * gap < error, far, near)
