"""Legal ways to compute in bfloat16 and float16: where known engines round between operations."""

import math
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from lockstep.parity.noise.float32 import float32_rope, tables, turned_by
from lockstep.reference.checkpoint.block_tensor import Packed
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.ops.add_lora import add_lora
from lockstep.reference.ops.add_lora_rows import add_lora_rows
from lockstep.reference.ops.attention_context import attention_context
from lockstep.reference.ops.attention_scores import attention_scores
from lockstep.reference.ops.dequantize import dequantize
from lockstep.reference.ops.dora_rescale import row_lengths
from lockstep.reference.ops.embedding import embedding
from lockstep.reference.ops.linear import linear
from lockstep.reference.ops.rms_norm import rms_norm
from lockstep.reference.ops.softmax import softmax
from lockstep.reference.precision import rounded

FLOAT32 = np.dtype(np.float32)
TILE = 4096  # rows of a packed weight that are unpacked at a time


def half_unpacked_linear(x: Any, weight: Any, bias: Any) -> np.ndarray:
    """Unpack in half precision before the product, as MLX's matrix kernels on a GPU do."""
    if not isinstance(weight, Packed):
        return linear(x, weight, bias)
    flat = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    tiles = [linear(flat, tile, None) for tile in half_tiles(weight, x.dtype)]
    out = np.concatenate(tiles, axis=-1).reshape(*x.shape[:-1], weight.shape[0])
    return out if bias is None else out + rounded(bias, x.dtype)


def half_tiles(weight: Packed, dtype: np.dtype) -> Iterator[np.ndarray]:
    for start in range(0, max(weight.shape[0], 1), TILE):
        yield dequantize(weight, rows=slice(start, start + TILE), dtype=dtype)


def half_unpacked_embedding(tokens: Any, table: Any, *, dtype: np.dtype) -> np.ndarray:
    """Round the product with the scale and the sum with the bias, as MLX does."""
    if not isinstance(table, Packed):
        return embedding(tokens, table, dtype=dtype)
    rows = dequantize(table, rows=tokens.reshape(-1), dtype=dtype)
    return rows.reshape(*tokens.shape, table.shape[1])


def half_scaled_embedding(tokens: Any, table: Any, *, dtype: np.dtype) -> np.ndarray:
    """Round the scales alone, as `fast.cpu` does."""
    return embedding(tokens, half_scales(table, dtype), dtype=dtype)


def half_scaled_linear(x: Any, weight: Any, bias: Any) -> np.ndarray:
    """Round the scales alone, as `fast.cpu` does."""
    return linear(x, half_scales(weight, x.dtype), bias)


def half_scales(weight: Any, dtype: np.dtype) -> Any:
    if not isinstance(weight, QuantizedTensor):
        return weight
    scales, biases = rounded(weight.scales, dtype), rounded(weight.biases, dtype)
    return replace(weight, scales=scales, biases=biases)


def once_rounded_rms_norm(x: Any, gain: Any, *, eps: float) -> np.ndarray:
    """Round after the gain alone, as MLX's fused kernel does."""
    return rounded(rms_norm(x.astype(FLOAT32), gain.astype(FLOAT32), eps=eps), x.dtype)


def thrice_rounded_layer_norm(x: Any, gain: Any, bias: Any, *, eps: float) -> np.ndarray:
    """Round the mean, the norm, the product and the sum, as MLX on a CPU does."""
    wide = x.astype(FLOAT32)
    centred = x - rounded(np.mean(wide, axis=-1, keepdims=True), x.dtype)
    power = np.square(centred.astype(FLOAT32)).mean(axis=-1, keepdims=True)
    normed = rounded(centred.astype(FLOAT32) / np.sqrt(power + eps), x.dtype)
    return normed * rounded(gain, x.dtype) + rounded(bias, x.dtype)


def stepwise_gelu_tanh(x: Any) -> np.ndarray:
    """Round after each step of the formula, as transformers' "gelu_new" does."""

    def step(values: np.ndarray) -> np.ndarray:
        return rounded(values, x.dtype).astype(FLOAT32)

    wide, exact = x.astype(FLOAT32), x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        cube = (exact * exact * exact).astype(FLOAT32)  # a power takes a hundred times as long
        bent = step(wide + step(FLOAT32.type(0.044715) * step(cube)))
        share = step(1 + step(np.tanh(step(FLOAT32.type(math.sqrt(2 / math.pi)) * bent))))
        return rounded(step(FLOAT32.type(0.5) * wide) * share, x.dtype)


def once_rounded_add_lora(y: Any, x: Any, a: Any, b: Any, *, scale: float) -> np.ndarray:
    """Round the sum alone, as PEFT does whose adapter stays in float32."""
    wide = add_lora(y.astype(FLOAT32), x.astype(FLOAT32), a, b, scale=scale)
    return rounded(wide, y.dtype)


def once_rounded_add_lora_rows(y: Any, tokens: Any, a: Any, b: Any, *, scale: float) -> np.ndarray:
    """The same for the rows of a table."""
    wide = add_lora_rows(y.astype(FLOAT32), tokens, a, b, scale=scale)
    return rounded(wide, y.dtype)


def stepwise_add_lora(y: Any, x: Any, a: Any, b: Any, *, scale: float) -> np.ndarray:
    """Hold the adapter in half precision and round each product, as PEFT does once it is cast."""
    return y + stepwise_delta(linear(x, a, None), b, scale=scale)


def stepwise_add_lora_rows(y: Any, tokens: Any, a: Any, b: Any, *, scale: float) -> np.ndarray:
    """The same for the rows of a table."""
    return y + stepwise_delta(rounded(b[tokens], y.dtype), a.T, scale=scale)


def stepwise_delta(inner: Any, up: Any, *, scale: float) -> np.ndarray:
    """Round the product with the second factor, then that with the scale, (..., R) -> (..., N)."""
    product = linear(inner, up, None)
    return rounded(product.astype(FLOAT32) * FLOAT32.type(scale), product.dtype)


def stepwise_dora_rescale(
    y: Any, weight: Any, bias: Any, a: Any, b: Any, magnitude: Any, *, scale: float
) -> np.ndarray:
    """Round the lengths too, both those that were learned and those of the rows as they are."""
    factors = rounded(a, y.dtype), rounded(b, y.dtype)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
        lengths = np.concatenate([*row_lengths(weight, *factors, scale, y.dtype)])
        out = y * (rounded(magnitude, y.dtype) / rounded(lengths, y.dtype))
        return out if bias is None else out + rounded(bias, y.dtype)


def stepwise_softcap(x: Any, *, cap: float) -> np.ndarray:
    """Round the quotient, the tanh and the product, as transformers and mlx-lm do."""
    bent = rounded(np.tanh((x / x.dtype.type(cap)).astype(FLOAT32)), x.dtype)
    return bent * x.dtype.type(cap)


def wide_scale(x: Any, *, by: float) -> np.ndarray:
    """Take a fraction as it is, and round the product alone, as PyTorch does with a number.

    A factor above 1 is that of a table, which the reference holds in the dtype of the activations:
    taken as it is, it is a bug of the catalogue.
    """
    held = x.dtype.type(by) if by > 1 else by
    return rounded(x.astype(FLOAT32) * FLOAT32.type(held), x.dtype)


def half_rope(x: Any, positions: Any, frequencies: Any, *, factor: float) -> np.ndarray:
    """Round cosine, sine, both products and their sum, as PyTorch and MLX on a CPU do."""
    return float32_rope(x, positions, frequencies, factor=factor)


def half_table_rope(x: Any, positions: Any, frequencies: Any, *, factor: float) -> np.ndarray:
    """Round cosine and sine, turn in float32, and round that, as FlashAttention's kernel does."""
    single = tables(positions, frequencies.astype(FLOAT32), factor, x.dtype)
    cos, sin = (table.astype(FLOAT32) for table in single)
    return rounded(turned_by(x.astype(FLOAT32), cos, sin), x.dtype)


def stretched_first_rope(x: Any, positions: Any, frequencies: Any, *, factor: float) -> np.ndarray:
    """Multiply by the factor before the turn, and round that too, as mlx-lm does."""
    return half_rope(x * x.dtype.type(factor), positions, frequencies, factor=1.0)


def half_silu(x: Any) -> np.ndarray:
    """Round the exponential, the sigmoid and the product, as MLX on a CPU does, to the bit.

    In float16 exp(12) is infinite, so that such a sigmoid is 0.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        power = rounded(np.exp(np.abs(x.astype(FLOAT32))), x.dtype).astype(FLOAT32)
        small = 1 / (1 + power)
        return x * rounded(np.where(x < 0, small, 1 - small), x.dtype)


def twice_rounded_scores(queries: Any, keys: Any, *, scale: float) -> np.ndarray:
    """Round the product before it is scaled, as PyTorch's eager attention does."""
    scores = attention_scores(queries, keys, scale=1.0)
    return rounded(scores.astype(FLOAT32) * FLOAT32.type(scale), scores.dtype)


def scaled_query_scores(queries: Any, keys: Any, *, scale: float) -> np.ndarray:
    """Scale the query by a rounded scale and round it, as MLX on a CPU does."""
    return attention_scores(queries * queries.dtype.type(scale), keys, scale=1.0)


def wide_scores(queries: Any, keys: Any, *, scale: float) -> np.ndarray:
    """Keep the scores in float32, as fused kernels and `fast.cpu` do."""
    return attention_scores(queries.astype(FLOAT32), keys.astype(FLOAT32), scale=scale)


def wide_softmax(scores: Any, mask: Any, *, masked_row: str) -> np.ndarray:
    """Keep the probabilities in float32."""
    return softmax(scores.astype(FLOAT32), mask, masked_row=masked_row)


def wide_context(probs: Any, values: Any, mask: Any) -> np.ndarray:
    """Round only what leaves the fused kernel."""
    context = attention_context(probs.astype(FLOAT32), values.astype(FLOAT32), mask)
    return rounded(context, values.dtype)


EAGER: dict[str, Any] = {
    "add_lora": once_rounded_add_lora,
    "add_lora_rows": once_rounded_add_lora_rows,
    "rope": half_rope,
    "attention_scores": twice_rounded_scores,
    "gelu_tanh": stepwise_gelu_tanh,
    "softcap": stepwise_softcap,
}
FUSED: dict[str, Any] = {
    "add_lora": stepwise_add_lora,
    "add_lora_rows": stepwise_add_lora_rows,
    "dora_rescale": stepwise_dora_rescale,
    "scale": wide_scale,
    "attention_scores": wide_scores,
    "softmax": wide_softmax,
    "attention_context": wide_context,
}
MLX_CPU: dict[str, Any] = {
    "rope": stretched_first_rope,
    "silu": half_silu,
    "layer_norm": thrice_rounded_layer_norm,
    "attention_scores": scaled_query_scores,
}
WAYS: list[dict[str, Any]] = [
    {},
    EAGER | {"embedding": half_scaled_embedding, "linear": half_scaled_linear},
    FUSED | {"rms_norm": once_rounded_rms_norm, "linear": half_unpacked_linear},
    MLX_CPU | {"embedding": half_unpacked_embedding},
]
