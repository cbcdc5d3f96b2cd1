"""On what else than its inputs the last bits of a run may hang."""

from __future__ import annotations

import os
import platform
from typing import Any
from zlib import crc32

import numpy as np

from lockstep import __version__
from lockstep.parity.dumps.crew import cores

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
           "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS")  # fmt: skip
ROWS, SUMMED = 40, 1531  # so long that libraries cut it, each in its own way


def surroundings(backend: str) -> dict[str, Any]:
    """Return what must be the same for the same bits, where a backend ("cpu", "mlx") computes.

    The texts of the variables are taken as they are: "4,2" is a number of threads to OpenMP.
    """
    found: dict[str, Any] = {
        "lockstep": __version__, "numpy": np.__version__, "machine": platform.machine(),
        "cores": cores(), **{name: os.environ.get(name) for name in THREADS},
        "matrix products": products(),
    }  # fmt: skip
    if backend == "mlx":
        from importlib.metadata import version

        import mlx.core as mx

        found |= {"mlx": version("mlx"), "device": str(mx.default_device())}
    if backend == "cpu":
        from lockstep.fast import kernels

        found |= {"kernels": kernels.available()}
    return found


def products() -> str:
    """Return a sum over the bits of some products, and of e to some numbers.

    A library of linear algebra has kernels for each kind of processor, which add in an order of
    their own; which of them is at work is nowhere said.
    """
    total = 0
    for dtype in (np.float32, np.float64):
        left, right = numbers(ROWS, SUMMED, dtype), numbers(SUMMED, ROWS, dtype)
        for made in (np.matmul(left, right), np.matmul(left[:1], right), np.exp(left[:2])):
            total = crc32(np.ascontiguousarray(made).data, total)
    return f"{total:08x}"


def numbers(rows: int, columns: int, dtype: Any) -> np.ndarray:
    """Return numbers between -1 and 1 without a pattern that sums could be exact for."""
    places = np.arange(rows * columns, dtype=np.int64)
    return ((places * 7919 % 10007 - 5003) / 5009).astype(dtype).reshape(rows, columns)
