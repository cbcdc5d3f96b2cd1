"""To the bit: how known engines round in half precision, operation by operation.

A legal way of `half` says how large rounding errors may be; a convention says where each of them
falls. With the right one a replay gives the port's own bits, and what moves a value by less than a
rounding can still be told by the bits that it turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.parity.noise import half
from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.ops.experts import experts
from lockstep.reference.ops.geglu_experts import geglu_experts
from lockstep.reference.ops.linear import linear
from lockstep.reference.ops.softmax import MASKED_ROWS
from lockstep.reference.ops.top_k_routing import top_k_routing
from lockstep.reference.precision import rounded

FLOAT32 = np.dtype(np.float32)


def wide_routing(logits: Any, *, per_token: int, normalize: bool) -> np.ndarray:
    """Keep what each expert counts in float32, as transformers does."""
    return top_k_routing(logits.astype(FLOAT32), per_token=per_token, normalize=normalize)


def rounded_terms(experts: Any) -> Any:
    """Round what each expert says times its weight, where that weight is in half precision."""

    def summed(x: Any, routing: Any, *stacks: Any, per_token: int) -> np.ndarray:
        if routing.dtype == FLOAT32:
            return experts(x, routing, *stacks, per_token=per_token)
        total = np.zeros(x.shape, FLOAT32)
        for expert in np.flatnonzero(routing.reshape(-1, routing.shape[-1]).any(axis=0)):
            alone = np.zeros_like(routing)
            alone[..., expert] = routing[..., expert]
            total += experts(x, alone, *stacks, per_token=1).astype(FLOAT32)
        return rounded(total, x.dtype)

    return summed


def biased_linear(x: Any, weight: Any, bias: Any) -> np.ndarray:
    """Add the bias before the one rounding, as a fused matrix product does."""
    if bias is None:
        return linear(x, weight, None)
    wide = linear(x.astype(FLOAT32), held(weight, x.dtype), rounded(bias, x.dtype).astype(FLOAT32))
    return rounded(wide, x.dtype)


def held(weight: Any, dtype: np.dtype) -> Any:
    return weight if isinstance(weight, Packed) else rounded(weight, dtype)


EAGER = {"rope": half.half_rope, "attention_scores": half.twice_rounded_scores}
WIDE = {
    "attention_scores": half.wide_scores,
    "softmax": half.wide_softmax,
    "attention_context": half.wide_context,
}
SDPA = WIDE | {"rope": half.half_rope}
MLX = {name: half.MLX_CPU[name] for name in ("rope", "attention_scores", "silu", "layer_norm")}


def flash(dtype: np.dtype) -> dict[str, Any]:
    """PyTorch's fused attention on a CPU."""

    def softmax(scores: Any, mask: Any, *, masked_row: str) -> np.ndarray:
        seen = np.where(mask, scores.astype(FLOAT32), -np.inf)
        with np.errstate(invalid="ignore"):
            powers = np.exp(seen - seen.max(axis=-1, keepdims=True))
            shares = rounded(powers, dtype).astype(FLOAT32) / powers.sum(axis=-1, keepdims=True)
        blind = ~mask.any(axis=-1, keepdims=True)
        return np.where(blind, FLOAT32.type(MASKED_ROWS[masked_row](scores.shape[-1])), shares)

    return SDPA | {"softmax": softmax}


def wide_until_shares(dtype: np.dtype) -> dict[str, Any]:
    """Keep scores in float32, and round the shares of a softmax that is, as JAX ports do."""

    def softmax(scores: Any, mask: Any, *, masked_row: str) -> np.ndarray:
        return rounded(half.wide_softmax(scores, mask, masked_row=masked_row), dtype)

    return {"attention_scores": half.wide_scores, "softmax": softmax}


Choice = tuple[dict[str, Any], ...]
SUMS: dict[str, Any] = {
    "experts": rounded_terms(experts),
    "geglu_experts": rounded_terms(geglu_experts),
}
TABLES: Choice = ({}, {"rope": half.half_table_rope})
NORM: Choice = ({}, {"rms_norm": half.once_rounded_rms_norm})
GELU: Choice = ({}, {"gelu_tanh": half.stepwise_gelu_tanh})
SCALE: Choice = ({"scale": half.wide_scale}, {})
# As the reference does: terms in float32, whatever the weights are rounded to.
OURS: dict[str, Any] = {"experts": experts, "geglu_experts": geglu_experts}
ROUTING: Choice = ({"top_k_routing": wide_routing}, {}, OURS)
BIAS: Choice = ({"linear": biased_linear}, {})
SOFTCAP: Choice = ({"softcap": half.stepwise_softcap}, {})


def choices(dtype: np.dtype) -> tuple[Choice, ...]:
    """Return for each operation, or group of them, the ways that engines round it.

    A convention takes one way of each, and `SUMS`.
    """
    shares = wide_until_shares(dtype)
    turned_too = shares | {"rope": half.half_rope}
    attention: Choice = (EAGER, flash(dtype), SDPA, WIDE, {}, MLX, shares, turned_too)
    return attention, TABLES, NORM, GELU, SCALE, ROUTING, BIAS, SOFTCAP
