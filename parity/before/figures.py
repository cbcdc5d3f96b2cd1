"""Comparing two arrays of weights: the same but for rounding, and figures where they are not."""

from typing import Any

import numpy as np

from lockstep.parity.dumps.dtype import narrower
from lockstep.reference.precision import rounded

# Twice what one rounding can do.
STEPS = {"float64": 1e-6, "float32": 1e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def wide(array: np.ndarray) -> np.ndarray:
    """Return the values in float32, which holds every stored weight but float64."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return array.astype(np.float32)


def grid(array: np.ndarray) -> str:
    """Return the coarsest dtype that holds every value: bfloat16 stored as float32 is that."""
    if array.dtype.name != "float32":
        return array.dtype.name
    return narrower(array) or "float32"


def on_grid(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 values rounded to a dtype, in float32 again."""
    if dtype in ("float32", "float64"):
        return values
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return rounded(values, np.dtype(dtype) if dtype == "float16" else bfloat16()).astype(
            np.float32
        )


def bfloat16() -> np.dtype:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def same(left: np.ndarray, right: np.ndarray) -> bool:
    """Say whether two arrays hold the same values, whatever they are stored in."""
    if left.shape != right.shape:
        return False
    if left.dtype == right.dtype:  # bits are quick to compare
        whole = np.dtype(f"u{left.dtype.itemsize}")
        left, right = (np.ascontiguousarray(one).reshape(-1).view(whole) for one in (left, right))
        return bool(np.array_equal(left, right))
    return "float64" not in (left.dtype.name, right.dtype.name) and identical(
        wide(left), wide(right)
    )


def identical(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and np.array_equal(left, right, equal_nan=True)


def near(found: np.ndarray, wanted: np.ndarray, dtype: str) -> bool:
    """Say whether two arrays differ by the rounding of a dtype at most, over all their values."""
    if found.shape != wanted.shape:
        return False
    error = distance(found, wanted)
    return error is not None and error <= STEPS[dtype]


def distance(found: np.ndarray, wanted: np.ndarray) -> float | None:
    """Return the root mean square of the difference over that of `wanted`; None if undefined."""
    with np.errstate(over="ignore", invalid="ignore"):
        scale = rms(wanted)
        error = rms(found - wanted)
    return error / scale if scale > 0 and np.isfinite(error) else None


def rms(values: np.ndarray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        flat = values.reshape(-1)
        return float(np.sqrt(np.einsum("i,i->", flat, flat, dtype=np.float64) / max(flat.size, 1)))


def gain(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the number that brings `wanted` closest to `found`."""
    x, y = found.reshape(-1), wanted.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.einsum("i,i->", y, y, dtype=np.float64))
        return float(np.einsum("i,i->", x, y, dtype=np.float64)) / square if square else np.nan


def figures(found: np.ndarray, wanted: np.ndarray) -> dict[str, Any]:
    """Return what can be measured of a difference that nothing explains."""
    x, y = rms(found), rms(wanted)
    slope = gain(found, wanted)
    rows = (found != wanted).reshape(len(found), -1).any(axis=-1) if found.ndim else found != wanted
    return {
        "rms_theirs": x,
        "rms_ours": y,
        "correlation": slope * y / x if x > 0 else 0.0,
        "gain": slope,
        "error": distance(found, wanted),
        "equal": float(np.mean(found == wanted)),
        "rows_apart": int(np.count_nonzero(rows)),
        "rows": int(np.size(rows)),
        "not_finite": int(np.count_nonzero(~np.isfinite(found))),
    }
