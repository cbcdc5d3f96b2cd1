"""What correct arithmetic at a port's precision would show: legal ways to compute the same.

Each way is a namespace of operations. How far their results lie from a float64 replay is the noise
that a port is measured against.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

from lockstep.parity.noise import float32, half
from lockstep.parity.noise.exact import vars_of
from lockstep.reference import ops

Way = tuple[Any, np.dtype]


def ways(dtype: np.dtype) -> list[Way]:
    """Return the legal ways to compute in `dtype`, each a namespace and its dtype."""
    changes = {8: float32.ORDERS, 4: float32.WAYS}.get(dtype.itemsize, half.WAYS)
    return [(of_port(namespace(change), dtype), dtype) for change in changes]


def namespace(change: dict[str, Any]) -> Any:
    """Return the operations of the reference with some of them replaced."""
    return SimpleNamespace(**{name: getattr(ops, name) for name in ops.__all__} | change)


def of_port(ops: Any, dtype: np.dtype) -> Any:
    """Return operations, and the port's dtype beside them: some bugs are others in another dtype.

    What they are computed in may be wider, or be another one.
    """
    return SimpleNamespace(**vars_of(ops) | {"port_dtype": dtype})
