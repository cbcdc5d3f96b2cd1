"""What an adapter adds, in half precision, where the rest is computed in more.

A port that computes in half precision anyway rounds there as it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.adapter_layers import FACTORS
from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.routers import rounded_through
from lockstep.parity.graph import Call, Graph
from lockstep.reference.precision import rounded

HALF = 2  # bytes


def is_in_half(ops: Any, dtype: np.dtype) -> bool:
    """Say whether the port computes in half precision."""
    return getattr(ops, "port_dtype", dtype).itemsize <= HALF


def narrowed(name: str) -> Callable[..., np.ndarray]:
    half = rounded_through(name)
    return lambda ops, x: x if is_in_half(ops, x.dtype) else half(ops, x)


def factors_in(name: str) -> Rewrite:
    """Round both factors, as a file in half precision has them."""
    half = narrowed(name)

    @rewrite(FACTORS)
    def rewritten(call: Call, graph: Graph) -> Call:
        a, b = FACTORS[call.op]
        return call.with_changed(a, half).with_changed(b, half)

    return rewritten


def added_in(name: str) -> Rewrite:
    """Round what goes in as well, and what each of the two products gives; then scale."""
    half = rounded_through(name)

    def wrong(ops: Any, y: Any, x: Any, a: Any, b: Any, *, scale: float) -> np.ndarray:
        if is_in_half(ops, x.dtype):
            return ops.add_lora(y, x, a, b, scale=scale)
        low = half(ops, ops.linear(half(ops, x), half(ops, a.astype(x.dtype)), None))
        added = half(ops, ops.linear(low, half(ops, b.astype(x.dtype)), None))
        return rounded(y + added * y.dtype.type(scale), y.dtype)

    @rewrite("add_lora")
    def rewritten(call: Call, graph: Graph) -> Call:
        return call.replaced(wrong)

    return rewritten
