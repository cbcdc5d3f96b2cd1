"""How far a result may lie from the truth: one table, by kind of operation and by dtype.

A figure is relative to the largest magnitude of the expected result, and allowed before the last
rounding: a half-precision result has to be a correct rounding of something that close. So most
halves are held to the float32 that they are carried in.
"""

from typing import NamedTuple

import numpy as np

from tests.rounding import nearest


class Allowed(NamedTuple):
    float64: float
    float32: float
    bfloat16: float
    float16: float


TABLE = {
    "exact": Allowed(0, 0, 0, 0),
    "pointwise": Allowed(1e-15, 5e-7, 5e-7, 5e-7),
    "sum": Allowed(1e-14, 2e-6, 2e-6, 2e-6),
    "rotation": Allowed(1e-12, 1e-6, 1e-6, 1e-6),
    "model": Allowed(1e-12, 2e-5, 0, 0),
    # Rounded to half precision in between as well: one unit of the last place more.
    "rounded twice": Allowed(1e-14, 2e-6, 2**-8, 2**-11),
    # Rounded after scores and after probabilities: what attention passes on of both.
    "rounded thrice": Allowed(1e-14, 2e-6, 2**-6, 2**-9),
}
# Where a docstring of `fast/ops` names a difference: half precision inside, float32 angles.
MLX = {
    "pointwise": Allowed(0, 5e-7, 2**-7, 2**-10),
    "sum": Allowed(0, 2e-6, 2**-6, 2**-9),
    "rotation": Allowed(0, 2e-5, 2**-6, 2**-9),
}


def allowed(kind: str, dtype, backend) -> float:
    """Look up a figure; `backend` None is the reference's."""
    table = TABLE | MLX if backend is not None and backend.name == "mlx" else TABLE
    return getattr(table[kind], np.dtype(dtype).name)


def assert_close(actual, exact, *, kind: str, backend=None, each: bool = False) -> None:
    """Compare a result with the exact value, given in float64; NaN equals NaN and nothing else.

    With `each`, a figure is relative to every number instead of to the largest.
    """
    exact, found = np.asarray(exact, np.float64), np.asarray(actual).astype(np.float64)
    assert found.shape == exact.shape
    size = np.abs(np.where(np.isfinite(exact), exact, 0))
    slack = allowed(kind, actual.dtype, backend) * (size if each else size.max(initial=0))
    low, high = nearest(exact - slack, actual.dtype), nearest(exact + slack, actual.dtype)
    good = ((low <= found) & (found <= high)) | (np.isnan(found) & np.isnan(exact))
    where = np.argwhere(~good)
    assert good.all(), f"{len(where)} of {good.size} differ, first at {where[0]}: " + (
        f"{found[tuple(where[0])]}, but should be {exact[tuple(where[0])]}"
    )


def assert_same_bits(actual, expected) -> None:
    """Compare bit by bit: 0 is not -0. Any NaN equals any other."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    same = bits(actual) == bits(expected)
    assert (same | ((actual != actual) & (expected != expected))).all(), f"{actual} {expected}"


def bits(array) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
