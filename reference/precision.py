"""Which dtype a computation is done in, and where it is carried wider."""

import numpy as np

NAMES = ("float64", "float32", "bfloat16", "float16")


def dtype_named(name: str) -> np.dtype:
    """Return the NumPy dtype called `name`; bfloat16 comes from ml_dtypes, loaded only then.

    Raises ValueError for a name outside `NAMES`.
    """
    if name not in NAMES:
        raise ValueError(f"dtype={name!r}, but should be one of {', '.join(NAMES)}")
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def accumulator(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which sums of `dtype` are carried: float64 for itself, else float32."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def rounded(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round to `dtype`, to nearest with ties to even; what is too large becomes infinite."""
    if x.dtype == dtype:
        return x
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return x.astype(dtype, copy=False)
