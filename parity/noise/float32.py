"""Legal ways to compute in float32: other orders of the same sums, float32 angles."""

from typing import Any

import numpy as np

from lockstep.reference.ops.attention_context import attention_context
from lockstep.reference.ops.attention_scores import attention_scores
from lockstep.reference.ops.linear import row_tiles

STEPS = 128  # partial sums of a projection that are really rounded; more are extrapolated
FEW = 16  # the same for attention, whose every partial sum is a matrix of scores


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
    return stepwise(flat, tile.T, STEPS)


def stepwise(left: np.ndarray, right: np.ndarray, steps: int) -> np.ndarray:
    """Multiply two (stacks of) matrices, rounding after each of at most `steps` partial sums."""
    length = left.shape[-1]
    width = max(-(-length // steps), 1)
    at_once = left @ right
    total = np.zeros_like(at_once)
    for start in range(0, length, width):
        part = slice(start, start + width)
        total += left[..., part] @ right[..., part, :]
    return at_once + (total - at_once) * left.dtype.type(np.sqrt(width))


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


def sequential_scores(queries: Any, keys: Any, *, scale: float) -> np.ndarray:
    """Scale the query, then add its products with a key one after another."""
    shared = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    return stepwise(queries * queries.dtype.type(scale), shared.swapaxes(-1, -2), FEW)


def sequential_context(probs: Any, values: Any, mask: Any) -> np.ndarray:
    """Add the weighted values one after another."""
    shared = np.repeat(values, probs.shape[1] // values.shape[1], axis=1)
    return stepwise(probs, shared, FEW)


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
        "attention_scores": sequential_scores,
        "attention_context": sequential_context,
    },
    {
        "linear": shuffled_linear,
        "rms_norm": gain_first_rms_norm,
        "rope": exponential_rope,
        "attention_scores": scaled_query_scores,
        "attention_context": reversed_context,
    },
]
