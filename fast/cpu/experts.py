from collections.abc import Callable

import numpy as np

from lockstep.fast.cpu.add_lora import add_lora
from lockstep.fast.cpu.linear import linear
from lockstep.fast.cpu.swiglu import swiglu
from lockstep.fast.shapes import Hidden, Inputs, Narrowing, Outputs, Routing, Weight, Widening
from lockstep.reference.checkpoint.adapters import Adapted


def experts(
    x: Hidden, routing: Routing, gate: Widening, up: Widening, down: Narrowing, *, per_token: int
) -> Hidden:
    """Run each token through its experts, and sum their results, weighted.

    Differs from `reference.ops.experts`: all visits are listed once, sorted by expert; in half
    precision the inner product of an expert is not rounded on its way.
    """
    return gated_experts(x, routing, gate, up, down, per_token=per_token, gated=swiglu)


def gated_experts(
    x: Hidden, routing: Routing, gate: Widening, up: Widening, down: Narrowing,
    *, per_token: int, gated: Callable[..., Hidden], linear: Callable[..., Outputs] = linear,
) -> Hidden:  # fmt: skip
    """Do it with a gate of the model's own, and products made another way."""
    tokens = x.reshape(-1, x.shape[-1])
    visitors, ids = np.nonzero(routing.reshape(-1, routing.shape[-1]))
    if len(ids) and np.bincount(visitors).max() > per_token:
        raise ValueError(f"experts: a token has {np.bincount(visitors).max()}, not {per_token}")
    out = np.zeros(tokens.shape, np.float32)
    for expert in np.unique(ids).tolist():
        rows = visitors[ids == expert]
        some = tokens[rows].astype(np.float32, copy=False)
        inner = gated(product(some, gate[expert], linear), product(some, up[expert], linear))
        said = product(inner, down[expert], linear)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            said *= routing[..., expert].reshape(-1)[rows, None].astype(np.float32)
            out[rows] += said
    return out.astype(x.dtype, copy=False).reshape(x.shape)


def product(x: Inputs, matrix: Weight | Adapted, linear: Callable[..., Outputs]) -> Outputs:
    """Multiply by the matrix of one expert, and add what its adapter makes of the same input."""
    if not isinstance(matrix, Adapted):
        return linear(x, matrix, None)
    pair, scale = (matrix.adapter.a, matrix.adapter.b), matrix.adapter.scale
    return add_lora(linear(x, matrix.weight, None), x, *pair, scale=scale)
