"""Experts on MLX that are not all in memory: each is given its tokens when it is there."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from lockstep.fast.shapes import Array, Hidden, Routing
from lockstep.fast.streaming.experts import StreamedStack, visited
from lockstep.reference.checkpoint.adapters import Adapted


def is_streamed(stack: Any) -> bool:
    """Tell whether the matrices of a stack, adapted or not, are read as they are visited."""
    return isinstance(stack.weight if isinstance(stack, Adapted) else stack, StreamedStack)


def one_by_one(
    x: Hidden, routing: Routing, gate: Any, up: Any, down: Any, *, gated: Callable[..., Hidden]
) -> Hidden:
    """Sum what the experts say in float32, by rising number.

    This waits for the routing, and for each expert: its matrices may then make room for others.
    """
    tokens, routing = x.reshape(-1, x.shape[-1]), routing.reshape(-1, routing.shape[-1])
    chosen, out = np.array(routing != 0), mx.zeros(tokens.shape, mx.float32)
    for expert in visited(chosen):
        rows = mx.array(np.flatnonzero(chosen[:, expert]))
        some = tokens[rows]
        inner = gated(product(some, gate[expert]), product(some, up[expert]))
        said = product(inner, down[expert]).astype(mx.float32)
        out = out.at[rows].add(said * routing[rows, expert][:, None].astype(mx.float32))
        mx.eval(out)
    return out.astype(x.dtype).reshape(x.shape)


def product(x: Array, matrix: Any) -> Array:
    """Multiply by the matrix of one expert, and add what its adapter makes of the same input."""
    from lockstep.fast.ops.add_lora import add_lora
    from lockstep.fast.ops.linear import linear

    if not isinstance(matrix, Adapted):
        return linear(x, matrix, None)
    pair, scale = (matrix.adapter.a, matrix.adapter.b), matrix.adapter.scale
    return add_lora(linear(x, matrix.weight, None), x, *pair, scale=scale)
