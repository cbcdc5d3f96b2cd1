"""A matrix that stays in its file: a head's may be a quarter of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Unread:
    """A dense matrix (rows, columns), of which `matrix[4:8]` brings these rows and no others.

    It stands where `linear` takes an array, and gives slices without a step. Nothing is kept.
    NumPy's functions read it whole, as does `astype`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[int, int], Any]

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        return self.read(start, stop)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:] if dtype is None else self[:].astype(dtype, copy=False)

    def astype(self, dtype: Any, *, copy: bool = True) -> np.ndarray:
        return self[:].astype(dtype, copy=copy)
