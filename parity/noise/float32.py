"""Legal ways to compute in float32: other orders of the same sums, float32 angles."""

import math
from math import prod
from typing import Any

import numpy as np

from lockstep.parity.noise.frequencies import KINDS, in_float32, nearby_llama3
from lockstep.reference.ops.attention_context import attention_context
from lockstep.reference.ops.attention_scores import attention_scores
from lockstep.reference.ops.embedding import embedding
from lockstep.reference.ops.experts import weighted_experts
from lockstep.reference.ops.linear import row_tiles
from lockstep.reference.ops.swiglu import swiglu
from lockstep.reference.precision import rounded

STEPS = 16  # partial sums that are really rounded; the error of more is extrapolated


def sequential_linear(x: Any, weight: Any, bias: Any) -> np.ndarray:
    """Add the products one after another, as a plain loop does and MLX on a CPU."""
    flat = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    out = [stepwise(flat, tile.T) for tile in row_tiles(weight, x.dtype)]
    out = np.concatenate(out, axis=-1).reshape(*x.shape[:-1], weight.shape[0])
    return out if bias is None else out + bias.astype(x.dtype)


def stepwise(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiply two (stacks of) matrices, rounding after each of at most `STEPS` partial sums.

    A sum of K terms is rounded K times in a row. Since the roundings are independent, what all K
    lose is what these few lose, times the root of how many terms each takes at once.
    """
    width = max(-(-left.shape[-1] // STEPS), 1)
    total = np.zeros((*left.shape[:-1], right.shape[-1]), left.dtype)
    lost = np.zeros_like(total)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, left.shape[-1], width):
            some = slice(start, start + width)
            part = left[..., some] @ right[..., some, :]
            before, total = total, total + part
            taken = total - before
            lost += (part - taken) + (before - (total - taken))  # exact: Knuth's two-sum
        return total - lost * left.dtype.type(np.sqrt(width) - 1)


def sequential_experts(x: Any, routing: Any, *stacks: Any, per_token: int) -> np.ndarray:
    """Add the products inside of each expert one after another."""
    gate, up, down = stacks
    return weighted_experts(
        x, routing, gate, up, down, per_token=per_token, linear=sequential_linear, gated=swiglu
    )


def sequential_geglu_experts(x: Any, routing: Any, *stacks: Any, per_token: int) -> np.ndarray:
    """The same, gated by a GELU that adds 1 to the tanh."""
    gate, up, down = stacks
    return weighted_experts(
        x, routing, gate, up, down, per_token=per_token, linear=sequential_linear, gated=bent_gate
    )


def bent_gate(gate: Any, up: Any) -> np.ndarray:
    return literal_gelu_tanh(gate) * up


def sequential_add_lora(y: Any, x: Any, a: Any, b: Any, *, scale: float) -> np.ndarray:
    """Add the products of either small matrix one after another."""
    inner = stepwise(x.reshape(prod(x.shape[:-1]), x.shape[-1]), a.T.astype(x.dtype))
    delta = stepwise(inner, b.T.astype(x.dtype)) * x.dtype.type(scale)
    return y + delta.reshape(y.shape)


def sequential_add_lora_rows(y: Any, tokens: Any, a: Any, b: Any, *, scale: float) -> np.ndarray:
    """Add the products of one row one after another."""
    delta = stepwise(b[tokens.reshape(-1)].astype(y.dtype), a.astype(y.dtype))
    return y + (delta * y.dtype.type(scale)).reshape(y.shape)


def fused_embedding(tokens: Any, table: Any, *, dtype: np.dtype) -> np.ndarray:
    """Unpack with one rounding for product and sum, as a fused multiply-add does."""
    return rounded(embedding(tokens, table, dtype=np.dtype(np.float64)), dtype)


def sequential_rms_norm(x: Any, gain: Any, *, eps: float) -> np.ndarray:
    """Add the squares one after another, and multiply by a reciprocal root, as MLX does."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        squares = np.cumsum(x * x, axis=-1, dtype=x.dtype)[..., -1:]
        power = squares / x.dtype.type(x.shape[-1])
        return x * (1 / np.sqrt(power + x.dtype.type(eps))) * gain.astype(x.dtype)


def rough_rms_norm(x: Any, gain: Any, *, eps: float) -> np.ndarray:
    """Multiply by a reciprocal root that is a unit in the last place off: the `rsqrt` of a GPU."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        power = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
        root = np.nextafter((1 / np.sqrt(power + eps)).astype(x.dtype), x.dtype.type(np.inf))
        return x * root * gain.astype(x.dtype)


def sequential_unit_norm(x: Any, *, eps: float) -> np.ndarray:
    return sequential_rms_norm(x, np.ones(x.shape[-1]), eps=eps)


def rough_unit_norm(x: Any, *, eps: float) -> np.ndarray:
    return rough_rms_norm(x, np.ones(x.shape[-1]), eps=eps)


def reciprocal_softcap(x: Any, *, cap: float) -> np.ndarray:
    """Multiply by the reciprocal of the cap, and take a tanh that is a unit in the last place off.

    So engines whose tanh is no better than that.
    """
    bent = np.tanh(x * x.dtype.type(1 / cap))
    return np.nextafter(bent, bent.dtype.type(0)) * x.dtype.type(cap)


def sequential_layer_norm(x: Any, gain: Any, bias: Any, *, eps: float) -> np.ndarray:
    """Add values and squares one after another, and multiply by a reciprocal root, as MLX does."""
    width = x.dtype.type(x.shape[-1])
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        centred = x - np.cumsum(x, axis=-1, dtype=x.dtype)[..., -1:] / width
        power = np.cumsum(centred * centred, axis=-1, dtype=x.dtype)[..., -1:] / width
        normed = centred * (1 / np.sqrt(power + x.dtype.type(eps)))
        return normed * gain.astype(x.dtype) + bias.astype(x.dtype)


def by_moments_layer_norm(x: Any, gain: Any, bias: Any, *, eps: float) -> np.ndarray:
    """Take the variance in one pass, as the mean of the squares less the square of the mean."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        mean = np.mean(x, axis=-1, keepdims=True)
        power = np.mean(x * x, axis=-1, keepdims=True) - mean * mean
        scale = gain.astype(x.dtype) / np.sqrt(np.maximum(power, 0) + x.dtype.type(eps))
        return x * scale + (bias.astype(x.dtype) - mean * scale)


def literal_gelu_tanh(x: Any) -> np.ndarray:
    """Add 1 to the tanh as the formula says, as PyTorch and MLX do."""
    bent = np.tanh(x.dtype.type(math.sqrt(2 / math.pi)) * (x + x.dtype.type(0.044715) * x * x * x))
    return x.dtype.type(0.5) * x * (1 + bent)


def literal_gelu_erf(x: Any) -> np.ndarray:
    """Add 1 to the error function as the formula says, as PyTorch and MLX do."""
    erf = np.vectorize(math.erf, otypes=[x.dtype])(x / x.dtype.type(math.sqrt(2)))
    return x.dtype.type(0.5) * x * (1 + erf)


def nearby_gelu_erf(x: Any) -> np.ndarray:
    """Take an error function that is two units in the last place off, as MLX's polynomial is."""
    erf = np.vectorize(math.erf, otypes=[x.dtype])(x / x.dtype.type(math.sqrt(2)))
    signs = np.where(np.arange(x.shape[-1]) % 2, -1, 1).astype(x.dtype)
    return x.dtype.type(0.5) * x * (1 + (erf + signs * np.finfo(x.dtype).eps))


def float32_rope(x: Any, positions: Any, frequencies: Any, *, factor: float) -> np.ndarray:
    """Turn by angles that were rounded to float32, from frequencies that were: PyTorch."""
    return turned(x, positions, frequencies.astype(np.float32), factor)


def nearby_rope(x: Any, positions: Any, frequencies: Any, *, factor: float) -> np.ndarray:
    """Turn by float32 frequencies that are a unit in the last place off, up and down by turns.

    So engines whose `pow`, `exp` or reciprocal of float32 periods is no better: MLX, llama.cpp.
    """
    near = frequencies.astype(np.float32)
    beyond = np.where(np.arange(near.shape[-1]) % 2, 0, np.inf).astype(np.float32)
    near = np.where(near == 1, near, np.nextafter(near, beyond))  # 1 is 1 in every engine
    return turned(x, positions, near, factor)


def turned(
    x: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, factor: float
) -> np.ndarray:
    cos, sin = tables(positions, frequencies, factor, x.dtype)
    return turned_by(x, cos, sin)


def tables(
    positions: np.ndarray, frequencies: np.ndarray, factor: float, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines, made in float32 and rounded to a dtype."""
    angle = positions[:, None, :, None].astype(np.float32) * frequencies[..., None, None, :]
    single = np.float32(factor)
    return (single * np.cos(angle)).astype(dtype), (single * np.sin(angle)).astype(dtype)


def turned_by(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def sequential_scores(queries: Any, keys: Any, *, scale: float) -> np.ndarray:
    """Scale the query, then add its products with a key one after another."""
    shared = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    return stepwise(queries * queries.dtype.type(scale), shared.swapaxes(-1, -2))


def sequential_context(probs: Any, values: Any, mask: Any) -> np.ndarray:
    """Add the weighted values one after another."""
    shared = np.repeat(values, probs.shape[1] // values.shape[1], axis=1)
    if not np.isfinite(shared).all():  # what is masked must not spoil the rest
        return attention_context(probs, values, mask)
    return stepwise(probs, shared)


def scaled_query_scores(queries: Any, keys: Any, *, scale: float) -> np.ndarray:
    """Scale the query instead of the product."""
    return attention_scores(queries * queries.dtype.type(scale), keys, scale=1.0)


def reversed_context(probs: Any, values: Any, mask: Any) -> np.ndarray:
    """Average from the last key to the first."""
    return attention_context(probs[..., ::-1], values[:, :, ::-1], mask[..., ::-1])


ORDERS: list[dict[str, Any]] = [
    {},
    {
        "linear": sequential_linear,
        "add_lora": sequential_add_lora,
        "add_lora_rows": sequential_add_lora_rows,
        "experts": sequential_experts,
        "geglu_experts": sequential_geglu_experts,
        "unit_norm": sequential_unit_norm,
        "softcap": reciprocal_softcap,
        "rms_norm": sequential_rms_norm,
        "layer_norm": sequential_layer_norm,
        "gelu_tanh": literal_gelu_tanh,
        "gelu_erf": literal_gelu_erf,
        "attention_scores": sequential_scores,
        "attention_context": sequential_context,
    },
    {
        "embedding": fused_embedding,
        "rms_norm": rough_rms_norm,
        "unit_norm": rough_unit_norm,
        "layer_norm": by_moments_layer_norm,
        "gelu_erf": nearby_gelu_erf,
        "attention_scores": scaled_query_scores,
        "attention_context": reversed_context,
    },
]
ROPES = [
    {},
    {"rope": float32_rope} | {kind: in_float32(kind) for kind in KINDS},
    {"rope": nearby_rope, "rope_frequencies_llama3": nearby_llama3},
]
WAYS = [order | rope for order, rope in zip(ORDERS, ROPES, strict=True)]
