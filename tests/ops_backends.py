"""The three namespaces of operations behind one face: NumPy goes in, NumPy comes out.

MLX runs on its CPU device here, wherever there is another: what its docstrings promise of a CPU
is pinned bit by bit. The fixtures `backend` and `precision` of conftest.py hand these out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import ml_dtypes
import mlx.core as mx
import numpy as np

from lockstep.fast import cpu
from lockstep.fast import ops as mlx_ops
from lockstep.parity.conformance.backends.ours import to_mlx
from lockstep.reference import ops as reference_ops

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
FAST_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Backend:
    """`backend.rope(x, ...)` is the operation of one namespace, on NumPy arrays.

    Masks alone are passed on as the namespace's own `causal_mask` makes them.
    """

    name: str
    ops: ModuleType
    dtypes: tuple[str, ...]

    def __getattr__(self, op: str) -> Callable[..., Any]:
        return partial(self.call, getattr(self.ops, op))

    def call(self, op: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self.name != "mlx":
            return op(*args, **options)
        with mx.stream(mx.cpu):
            options = {name: to_mlx(value) for name, value in options.items()}
            return to_numpy(op(*map(to_mlx, args), **options))

    def seen(self, mask: Any) -> np.ndarray:
        """Return a mask of this namespace as (B, 1, L, S) truth values."""
        return mask if self.name == "reference" else mask.mask


class Precision(NamedTuple):
    backend: Backend
    dtype: np.dtype


def to_numpy(value: Any) -> Any:
    if not isinstance(value, mx.array):
        return value
    if value.dtype == mx.bfloat16:
        return np.array(value.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(value)


BACKENDS = (
    Backend("reference", reference_ops, tuple(DTYPES)),
    Backend("mlx", mlx_ops, FAST_DTYPES),
    Backend("cpu", cpu, FAST_DTYPES),
)
PRECISIONS = tuple(
    Precision(backend, DTYPES[name]) for backend in BACKENDS for name in backend.dtypes
)
