"""Legal ways to compute in bfloat16 and float16: where known engines round between operations."""

from typing import Any

import numpy as np

from lockstep.parity.noise.float32 import shuffled_linear
from lockstep.reference.ops.attention_context import attention_context
from lockstep.reference.ops.attention_scores import attention_scores
from lockstep.reference.ops.rms_norm import rms_norm
from lockstep.reference.ops.softmax import softmax
from lockstep.reference.precision import rounded

FLOAT32 = np.dtype(np.float32)


def once_rounded_rms_norm(x: Any, gain: Any, *, eps: float) -> np.ndarray:
    """Round after the gain alone, as a fused kernel does."""
    return rounded(rms_norm(x.astype(FLOAT32), gain.astype(FLOAT32), eps=eps), x.dtype)


def half_rope(x: Any, positions: Any, frequencies: Any) -> np.ndarray:
    """Round cosine, sine, both products and their sum, as PyTorch does."""
    angle = positions[:, None, :, None].astype(FLOAT32) * frequencies.astype(FLOAT32)
    cos, sin = rounded(np.cos(angle), x.dtype), rounded(np.sin(angle), x.dtype)
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def half_silu(x: Any) -> np.ndarray:
    """Round the sigmoid before the product, as MLX does."""
    with np.errstate(over="ignore"):
        sigmoid = rounded(1 / (1 + np.exp(-x.astype(FLOAT32))), x.dtype)
    return x * sigmoid


def twice_rounded_scores(queries: Any, keys: Any, *, scale: float) -> np.ndarray:
    """Round the product before it is scaled, as PyTorch's eager attention does."""
    scores = attention_scores(queries, keys, scale=1.0)
    return scores * scores.dtype.type(scale)


def wide_scores(queries: Any, keys: Any, *, scale: float) -> np.ndarray:
    """Keep the scores in float32, as a fused kernel does."""
    return attention_scores(queries.astype(FLOAT32), keys.astype(FLOAT32), scale=scale)


def wide_softmax(scores: Any, mask: Any, *, masked_row: str) -> np.ndarray:
    return softmax(scores.astype(FLOAT32), mask, masked_row=masked_row)


def wide_context(probs: Any, values: Any, mask: Any) -> np.ndarray:
    """Round only what leaves the fused kernel."""
    context = attention_context(probs.astype(FLOAT32), values.astype(FLOAT32), mask)
    return rounded(context, values.dtype)


def scaled_query_scores(queries: Any, keys: Any, *, scale: float) -> np.ndarray:
    """Scale and round the query first, as MLX's fallback does."""
    return attention_scores(queries * queries.dtype.type(scale), keys, scale=1.0)


FUSED = {"attention_scores": wide_scores, "softmax": wide_softmax, "attention_context": wide_context}
WAYS: list[dict[str, Any]] = [
    {},
    {"rope": half_rope, "attention_scores": twice_rounded_scores},
    {"rms_norm": once_rounded_rms_norm, "linear": shuffled_linear, **FUSED},
    {"rope": half_rope, "silu": half_silu, "attention_scores": scaled_query_scores},
]
