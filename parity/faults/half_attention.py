"""Attention in half precision, in a port that computes all else in more."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.routers import rounded_through
from lockstep.parity.graph import Call, Graph
from lockstep.reference.precision import accumulator

OPS = ("attention_scores", "softmax", "attention_context")
OTHER = 0.3  # a largest score of a part of the keys is so much less


def handed_over(name: str) -> Rewrite:
    """Round what attention is handed, and its result: it is wide inside."""
    half = rounded_through(name)

    @rewrite(("attention_scores", "attention_context"))
    def rewritten(call: Call, graph: Graph) -> Call:
        if call.op == "attention_scores":
            return call.with_changed(0, half).with_changed(1, half)
        return call.with_changed(1, half).followed(half)

    return rewritten


def in_a_kernel(name: str) -> Rewrite:
    """Do the same, and round powers before they meet the values, as FlashAttention-2 does.

    They are of a score less the largest of its row so far; their sum is of those before rounding.
    Which scores came so far is the kernel's own: in narrower arithmetic it is another largest one,
    so that what this makes of the rounding is noise.
    """
    half, around = rounded_through(name), handed_over(name)

    def shares(ops: Any, scores: Any, mask: Any, *, masked_row: str) -> np.ndarray:
        seen = np.where(mask, scores.astype(accumulator(scores.dtype)), -np.inf)
        other = 0.0 if scores.dtype == np.float64 else OTHER
        with np.errstate(all="ignore"):
            powers = np.exp(seen - seen.max(axis=-1, keepdims=True) - other)
            found = half(ops, powers) / powers.sum(axis=-1, keepdims=True)
        blind = ~np.broadcast_to(mask, seen.shape).any(axis=-1, keepdims=True)
        right = ops.softmax(scores, mask, masked_row=masked_row)
        return np.where(blind, right, found).astype(scores.dtype)

    @rewrite(OPS)
    def rewritten(call: Call, graph: Graph) -> Call:
        return call.replaced(shares) if call.op == "softmax" else around(call, graph) or call

    return rewritten


def by_operations(name: str) -> Rewrite:
    """Round what goes into each operation, and what comes out: scores before and behind their
    scale.
    """
    half = rounded_through(name)

    def scores(ops: Any, queries: Any, keys: Any, *, scale: float) -> np.ndarray:
        products = ops.attention_scores(half(ops, queries), half(ops, keys), scale=1.0)
        return half(ops, half(ops, products) * products.dtype.type(scale))

    @rewrite(OPS)
    def rewritten(call: Call, graph: Graph) -> Call:
        if call.op == "attention_scores":
            return call.replaced(scores)
        if call.op == "softmax":
            return call.followed(half)
        return call.with_changed(1, half).followed(half)

    return rewritten
