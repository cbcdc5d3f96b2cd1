"""Averages by attention, one row of the batch after another where values of one are no numbers.

The operation leaves masked keys out of all rows then. Rows are hypotheses, or texts, side by side
here, and none may hang on the numbers of another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def by_rows(compute: Callable[..., Any], *inputs: np.ndarray) -> Any:
    """Compute an average from probabilities, values and a mask, each with one row or with all."""
    rows = max(map(len, inputs))
    if rows == 1 or np.isfinite(inputs[1]).all():
        return compute(*inputs)
    return np.concatenate([compute(*(of_row(one, row) for one in inputs)) for row in range(rows)])


def of_row(value: np.ndarray, row: int) -> np.ndarray:
    return value if len(value) == 1 else value[row : row + 1]
