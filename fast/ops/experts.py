from collections.abc import Callable
from typing import Any

import mlx.core as mx

from lockstep.fast.ops.dequantize_blocks import dequantize_blocks
from lockstep.fast.ops.swiglu import swiglu
from lockstep.fast.shapes import Array, Hidden, Narrowing, Routing, Widening
from lockstep.fast.streaming.one_by_one import is_streamed, one_by_one
from lockstep.reference.checkpoint.adapters import Adapted
from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.minifloat_tensor import MinifloatTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor

MANY = 64  # visits of experts from which it pays to sort them by expert


def experts(
    x: Hidden, routing: Routing, gate: Widening, up: Widening, down: Narrowing, *, per_token: int
) -> Hidden:
    """Run each token through its experts, and sum their results, weighted.

    Differs from `reference.ops.experts`: the matrices are gathered inside one product, packed or
    not, which MLX has on a CPU in float32 alone; blocks that it has no product for are expanded
    whole, a stack at a time; a token that chose fewer than `per_token` visits others with weight 0;
    more than that are left out unseen. Experts that stay on the disk get their tokens one by one.
    """
    return gated_experts(x, routing, gate, up, down, per_token=per_token, gated=swiglu)


def gated_experts(
    x: Hidden, routing: Routing, gate: Widening, up: Widening, down: Narrowing,
    *, per_token: int, gated: Callable[..., Hidden],
) -> Hidden:  # fmt: skip
    """Do it with a gate of the model's own."""
    if not x.size:
        return x
    if is_streamed(gate):
        return one_by_one(x, routing, gate, up, down, gated=gated)
    ids = mx.argsort(mx.where(routing == 0, 1, 0), axis=-1)[..., :per_token]  # by rising expert
    weights = mx.take_along_axis(routing, ids, axis=-1).reshape(-1, per_token, 1)
    visits = ids.reshape(-1)
    order = mx.argsort(visits) if visits.size >= MANY else mx.arange(visits.size)
    ids, ordered = visits[order], visits.size >= MANY
    some = x.reshape(-1, 1, x.shape[-1])[order // per_token]  # (visits, 1, E)
    inner = gated(product(some, gate, ids, ordered), product(some, up, ids, ordered))
    said = product(inner, down, ids, ordered)[mx.argsort(order)]
    said = said.reshape(-1, per_token, x.shape[-1]).astype(mx.float32)
    return (said * weights).sum(axis=1).astype(x.dtype).reshape(x.shape)


def product(x: Array, stack: Any, ids: Array, ordered: bool) -> Array:
    """Multiply each visit with the matrix of its expert: (visits, 1, K) -> (visits, 1, N)."""
    if isinstance(stack, Adapted):
        learned = learned_by(x, stack.adapter, ids, ordered).astype(x.dtype)
        return product(x, stack.weight, ids, ordered) + learned
    if not isinstance(stack, QuantizedTensor | MinifloatTensor):
        work = mx.float32 if mx.default_device().type == mx.cpu else x.dtype
        if isinstance(stack, BlockTensor):
            stack = dequantize_blocks(stack, rows=slice(None), dtype=work)
        matrices = stack.astype(work).swapaxes(-1, -2)
        out = mx.gather_mm(x.astype(work), matrices, rhs_indices=ids, sorted_indices=ordered)
        return out.astype(x.dtype)
    how = {"group_size": stack.group_size, "bits": stack.bits, "mode": stack.mode}
    packed = (stack.packed, stack.scales, stack.biases)
    y = mx.gather_qmm(x, *packed, rhs_indices=ids, sorted_indices=ordered, **how)
    return y.astype(x.dtype)


def learned_by(x: Array, adapter: Any, ids: Array, ordered: bool) -> Array:
    """Return what each visit's expert has learned to add: two small products in float32."""
    x = x.astype(mx.float32)
    for stack in (adapter.a, adapter.b):
        x = mx.gather_mm(x, stack.swapaxes(-1, -2), rhs_indices=ids, sorted_indices=ordered)
    return adapter.scale * x
