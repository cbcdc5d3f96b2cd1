from collections.abc import Callable

import numpy as np

from lockstep.reference.checkpoint.adapters import Adapted
from lockstep.reference.ops.add_lora import add_lora
from lockstep.reference.ops.linear import linear
from lockstep.reference.ops.swiglu import swiglu
from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Hidden, Inputs, Narrowing, Outputs, Routing, Weight, Widening


def experts(
    x: Hidden, routing: Routing, gate: Widening, up: Widening, down: Narrowing, *, per_token: int
) -> Hidden:
    """Run each token through its experts, each a gated MLP, and sum their results, weighted.

        out = sum over e of routing[e] * down[e] @ swiglu(gate[e] @ token, up[e] @ token)

    Only experts whose weight is not 0 are run, each once, on all the tokens that chose it.
    Rounding: that of `linear` and `swiglu` inside; the weighted sum in float32 (float64 for
    float64), by rising expert, rounded once to `x.dtype`.
    Edges: an expert that no token chose is not read; an infinite value of one that has weight 0
    spoils nothing; a NaN weight makes its token NaN.
    Varies by model: some add an expert that every token visits; Qwen3-MoE has none, and no bias.
    A stack may be `Adapted`: each expert then has an adapter of its own, added as `add_lora` does.
    Memory: one expert at a time, if the stacks are read as they are asked for.
    Raises: ValueError if a token has more than `per_token` experts.
    Source: Shazeer et al. 2017, arXiv:1701.06538, eq. 1; Qwen Team 2025, arXiv:2505.09388.
    """
    return weighted_experts(
        x, routing, gate, up, down, per_token=per_token, linear=linear, gated=swiglu
    )


def weighted_experts(
    x: Hidden, routing: Routing, gate: Widening, up: Widening, down: Narrowing,
    *, per_token: int, linear: Callable[..., Outputs], gated: Callable[..., Hidden],
) -> Hidden:  # fmt: skip
    """Sum what experts say, by any product and any gate: other orders of summing are legal too."""
    tokens = x.reshape(-1, x.shape[-1])
    weights = routing.reshape(-1, routing.shape[-1])
    chosen = weights != 0
    if (chosen.sum(axis=-1) > per_token).any():
        raise ValueError(f"experts: a token has {chosen.sum(axis=-1).max()}, not {per_token}")
    out = np.zeros(tokens.shape, accumulator(x.dtype))
    for expert in np.flatnonzero(chosen.any(axis=0)).tolist():
        rows = np.flatnonzero(chosen[:, expert])
        some = tokens[rows]
        inner = gated(product(some, gate[expert], linear), product(some, up[expert], linear))
        said = product(inner, down[expert], linear).astype(out.dtype)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            out[rows] += said * weights[rows, expert, None].astype(out.dtype)
    return rounded(out, x.dtype).reshape(x.shape)


def product(x: Inputs, matrix: Weight | Adapted, linear: Callable[..., Outputs]) -> Outputs:
    """Multiply by the matrix of one expert, and add what its adapter makes of the same input."""
    if not isinstance(matrix, Adapted):
        return linear(x, matrix, None)
    pair, scale = (matrix.adapter.a, matrix.adapter.b), matrix.adapter.scale
    return add_lora(linear(x, matrix.weight, None), x, *pair, scale=scale)
