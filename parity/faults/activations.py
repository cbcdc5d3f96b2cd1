"""Activations, right ones and others, and how to put one in the place of another.

An activation is `f(ops, x)`. The experts' is inside of one operation with the rest of them, so
there the whole operation is put together again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph
from lockstep.reference.ops.experts import weighted_experts
from lockstep.reference.precision import accumulator, rounded

Activation = Callable[[Any, np.ndarray], np.ndarray]

EXPERTS = {"experts": "silu", "geglu_experts": "gelu_tanh"}
GELU = ("gelu_tanh", "gelu_erf")
ANY = ("silu", *GELU)
SLOPE, CUBE = math.sqrt(2 / math.pi), 0.044715


def activated(wrong: Activation, *rights: str) -> Rewrite:
    """Take another activation where one of `rights` belongs, inside of the experts too."""

    @rewrite((*rights, *EXPERTS))
    def change(call: Call, graph: Graph) -> Call | None:
        if call.op not in EXPERTS:
            return call.replaced(wrong)
        return call.replaced(experts(wrong)) if EXPERTS[call.op] in rights else None

    return change


def experts(activation: Activation) -> Callable[..., np.ndarray]:
    """Return the experts with an activation of their own."""

    def wrong(ops: Any, x: Any, routing: Any, *stacks: Any, per_token: int) -> np.ndarray:
        gate, up, down = stacks
        return weighted_experts(
            x, routing, gate, up, down, per_token=per_token, linear=ops.linear,
            gated=lambda gate, up: ops.multiply(activation(ops, gate), up),
        )  # fmt: skip

    return wrong


def pointwise(formula: Callable[[np.ndarray], np.ndarray]) -> Activation:
    """Return the activation of a formula, computed wide and rounded once."""

    def activation(ops: Any, x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return rounded(formula(x.astype(accumulator(x.dtype))), x.dtype)

    return activation


def silu(ops: Any, x: np.ndarray) -> np.ndarray:
    return ops.silu(x)


def gelu_tanh(ops: Any, x: np.ndarray) -> np.ndarray:
    return ops.gelu_tanh(x)


def gelu_erf(ops: Any, x: np.ndarray) -> np.ndarray:
    return ops.gelu_erf(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def bent(x: np.ndarray) -> np.ndarray:
    """What the tanh form takes the hyperbolic tangent of."""
    return SLOPE * (x + CUBE * x * x * x)


quick = pointwise(lambda x: x * sigmoid(1.702 * x))
relu = pointwise(lambda x: np.maximum(x, 0))
squared_relu = pointwise(lambda x: np.square(np.maximum(x, 0)))
tanh_share = pointwise(lambda x: 0.5 * (1 + np.tanh(bent(x))))
sigmoid_share = pointwise(sigmoid)


def none_at_all(ops: Any, x: np.ndarray) -> np.ndarray:
    return x


def erf_share(ops: Any, x: np.ndarray) -> np.ndarray:
    """The share of x that the exact form lets through, by the form itself: gelu(x) / x."""
    wide = x.astype(accumulator(x.dtype))
    with np.errstate(all="ignore"):
        share = np.where(wide == 0, 0.5, ops.gelu_erf(wide) / wide)
    return rounded(share, x.dtype)


def overflowing(dtype: str) -> Activation:
    """Return a GELU whose tanh is made of a dtype's exponentials: inf / inf beyond their range."""
    limit = math.log(np.finfo(dtype).max)

    def activation(ops: Any, x: np.ndarray) -> np.ndarray:
        wide = x.astype(np.float64)
        return np.where(2 * bent(wide) > limit, x.dtype.type(np.nan), ops.gelu_tanh(x))

    return activation
