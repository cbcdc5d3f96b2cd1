"""Numbers that are too large for float16 since something else is wrong: no bug of their own.

A port that computes in float16 holds its stream and its products in it, as most do, and that is
right where the model's own numbers fit. Where other bugs made them larger than that, what they
overflow to follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.deciding.verdict import Chosen, Key
from lockstep.parity.explaining.whole_runs import FLOAT32
from lockstep.parity.graph import Evaluator
from lockstep.parity.graph.side_by_side import side_by_side
from lockstep.parity.noise import of_port

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

OVERFLOWS = ("fp16-residual-overflow", "fp16-mlp-product-overflow")
LARGEST = float(np.finfo(np.float16).max)
SAID = (
    "numbers at {where} are too large for float16, since others are wrong before them: in the "
    "right model they are {largest:.3g} at most, of {limit:g}"
)


def withdraw_too_large(chosen: dict[Key, Chosen], case: Case) -> list[str]:
    """Give up what overflows in a float16 port and not in the right model, if more is wrong there;
    return a note for each that says it.
    """
    if case.trial.dtype != np.float16 or case.graph.targets is not None:
        return []
    told: list[str] = []
    for key in [key for key in chosen if key[0] in OVERFLOWS and len(chosen) > 1]:
        bug, largest = chosen[key], largest_of(case, chosen[key].calls)
        if largest <= LARGEST:
            where = ", ".join(map(case.tap, bug.pieces))
            told.append(SAID.format(where=where, largest=largest, limit=LARGEST))
            del chosen[key]
    return told


@np.errstate(all="ignore")  # what a weight of the checkpoint makes may be no number
def largest_of(case: Case, calls: frozenset[int]) -> float:
    """Return the largest number that the right model has at some of its calls."""
    ops = of_port(case.model.ops, case.trial.dtype)
    run = Evaluator(case.graph, ops, FLOAT32, {}, case.read)
    return max(float(np.max(np.abs(row[0]))) for _, row in side_by_side(run, calls))
