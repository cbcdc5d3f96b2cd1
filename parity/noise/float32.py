"""Legal ways to compute in float32: other orders of the same sums, float32 angles."""

from typing import Any

import numpy as np

from lockstep.reference.ops.attention_context import attention_context
from lockstep.reference.ops.attention_scores import attention_scores
from lockstep.reference.ops.linear import row_tiles

STEPS = 128  # partial sums that are really rounded; more are extrapolated


def sequential_linear(x: Any, weight: Any, bias: Any) -> np.ndarray:
    """Add the products one after another, as a plain loop does.

    A sum of K terms is rounded K times. Only `STEPS` of them are made; since the roundings are
    independent, the error of all K is the error of these, times the root of their ratio.
    """
    flat = x.reshape(-1, x.shape[-1])
    out = np.concatenate([in_steps(flat, tile) for tile in row_tiles(weight, x.dtype)], axis=-1)
    out = out.reshape(*x.shape[:-1], -1)
    return out if bias is None else out + bias.astype(x.dtype)


def in_steps(flat: np.ndarray, tile: np.ndarray) -> np.ndarray:
    width = max(-(-flat.shape[-1] // STEPS), 1)
    total = np.zeros((len(flat), len(tile)), flat.dtype)
    for start in range(0, flat.shape[-1], width):
        part = slice(start, start + width)
        total += flat[:, part] @ tile[:, part].T
    at_once = flat @ tile.T
    return at_once + (total - at_once) * flat.dtype.type(np.sqrt(width))


def shuffled_linear(x: Any, weight: Any, bias: Any) -> np.ndarray:
    """Add the products in another order; the same one for the same width, so it repeats."""
    order = np.random.default_rng(x.shape[-1]).permutation(x.shape[-1])
    flat = x.reshape(-1, x.shape[-1])[:, order]
    tiles = [flat @ tile[:, order].T for tile in row_tiles(weight, x.dtype)]
    out = np.concatenate(tiles, axis=-1).reshape(*x.shape[:-1], -1)
    return out if bias is None else out + bias.astype(x.dtype)


def sequential_rms_norm(x: Any, gain: Any, *, eps: float) -> np.ndarray:
    """Add the squares one after another, and multiply by a reciprocal root."""
    squares = np.cumsum(x * x, axis=-1, dtype=x.dtype)[..., -1:]
    power = squares / x.dtype.type(x.shape[-1])
    return x * (1 / np.sqrt(power + x.dtype.type(eps))) * gain.astype(x.dtype)


def gain_first_rms_norm(x: Any, gain: Any, *, eps: float) -> np.ndarray:
    """Normalise with the mean taken in float64 and the gain multiplied in before the root."""
    power = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
    root = (1 / np.sqrt(power + eps)).astype(x.dtype)
    return x * gain.astype(x.dtype) * root


def float32_rope(x: Any, positions: Any, frequencies: Any) -> np.ndarray:
    """Turn by angles that were rounded to float32, from frequencies that were."""
    return turned(x, positions, frequencies.astype(np.float32))


def exponential_rope(x: Any, positions: Any, frequencies: Any) -> np.ndarray:
    """The same from frequencies that are a float32 exponential of a float32 logarithm."""
    return turned(x, positions, np.exp(np.log(frequencies).astype(np.float32)))


def turned(x: np.ndarray, positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    angle = positions[:, None, :, None].astype(np.float32) * frequencies
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def scaled_query_scores(queries: Any, keys: Any, *, scale: float) -> np.ndarray:
    """Scale the query instead of the product."""
    return attention_scores(queries * queries.dtype.type(scale), keys, scale=1.0)


def reversed_context(probs: Any, values: Any, mask: Any) -> np.ndarray:
    """Average from the last key to the first."""
    return attention_context(probs[..., ::-1], values[:, :, ::-1], mask[..., ::-1])


WAYS: list[dict[str, Any]] = [
    {},
    {
        "linear": sequential_linear,
        "rms_norm": sequential_rms_norm,
        "rope": float32_rope,
        "attention_scores": scaled_query_scores,
    },
    {
        "linear": shuffled_linear,
        "rms_norm": gain_first_rms_norm,
        "rope": exponential_rope,
        "attention_scores": scaled_query_scores,
        "attention_context": reversed_context,
    },
]
