"""Sums that the noise of models leaves out: of hundreds of exponentials, one after another."""

from typing import Any

import numpy as np

from lockstep.parity.noise import float32, namespace
from lockstep.reference.ops.softmax import MASKED_ROWS, peak
from lockstep.reference.precision import accumulator, rounded


def softmax(scores: Any, mask: Any, *, masked_row: str) -> np.ndarray:
    """Add the exponentials one after another, as MLX does on a CPU."""
    wide = scores.astype(accumulator(scores.dtype))
    seen = np.where(mask, wide, -np.inf)
    powers = np.exp(seen - peak(seen))
    blind = ~np.broadcast_to(mask, wide.shape).any(axis=-1, keepdims=True)
    policy = MASKED_ROWS[masked_row](max(wide.shape[-1], 1))
    return rounded(np.where(blind, policy, powers / total(powers)), scores.dtype)


def top_k_routing(logits: Any, *, per_token: int, normalize: bool) -> np.ndarray:
    """The same of the experts, and of those that were chosen."""
    wide = logits.astype(accumulator(logits.dtype))
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    probs = powers / total(powers)
    best = np.argsort(-probs, axis=-1, kind="stable")[..., :per_token]
    chosen = np.take_along_axis(probs, best, axis=-1)
    out = np.zeros_like(probs)
    np.put_along_axis(out, best, chosen / total(chosen) if normalize else chosen, axis=-1)
    return rounded(out, logits.dtype)


def total(x: np.ndarray) -> np.ndarray:
    return np.cumsum(x, axis=-1, dtype=x.dtype)[..., -1:] if x.shape[-1] else x.sum(-1)[..., None]


def one_after_another(dtype: np.dtype) -> Any:
    """Return the operations of the reference with every sum in such an order."""
    order = float32.ORDERS[1] if dtype.itemsize >= 4 else {}
    return namespace(order | {"softmax": softmax, "top_k_routing": top_k_routing})
