"""Work on some rows of a large array at a time: what is made of them stays in a core's cache."""

from collections.abc import Callable, Iterator

import numpy as np

from lockstep.reference.shapes import Array

FEW = 1 << 16  # numbers at a time


def portions(rows: int, width: int) -> Iterator[slice]:
    """Yield slices that make up `rows` rows, each of about `FEW` numbers, if a row has `width`."""
    some = max(1, FEW // max(width, 1))
    for start in range(0, rows, some):
        yield slice(start, start + some)


def row_by_row(function: Callable[[Array], Array], x: Array) -> Array:
    """Return `function(x)`, which makes each row of the last axis of that row alone.

    Rounding: that of `function`; no bit hangs on how many rows it is given, or on how they lie:
    NumPy adds up columns in another order, so rows lie whole.
    """
    if x.size <= FEW:
        return function(np.asarray(x, order="C"))
    rows = x.reshape(-1, x.shape[-1])
    out = np.empty_like(rows)
    for some in portions(*rows.shape):
        out[some] = function(np.ascontiguousarray(rows[some]))
    return out.reshape(x.shape)
