"""Softmaxes that go through the keys in blocks, and put the blocks together wrongly.

A kernel that reads keys block by block keeps the largest score so far, the sum of the exponentials
below it, and the sum of values by these. When a block raises the largest score, both sums so far
are multiplied by exp(before - now): Dao et al., "FlashAttention", 2022, algorithm 1. One that
gives the blocks to several workers puts them together likewise, each by its own largest score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.number import Number, bound_of_none
from lockstep.parity.faults.rewrites import instead, only
from lockstep.parity.faults.so_many_tokens import SIZES
from lockstep.parity.graph import Call, Graph
from lockstep.reference.precision import accumulator, rounded

# Shares (..., S) of scores, -inf where they are masked, in blocks of so many keys.
Shares = Callable[[np.ndarray, int], np.ndarray]


def total(powers: np.ndarray) -> np.ndarray:
    return powers.sum(axis=-1, keepdims=True)


def below(largest: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return exp(s - largest), nought where nothing is seen."""
    return np.nan_to_num(np.exp(scores - largest))


def below_all(scores: np.ndarray) -> np.ndarray:
    return below(scores.max(axis=-1, keepdims=True), scores)


def below_so_far(scores: np.ndarray, size: int) -> np.ndarray:
    """Return the powers below the largest score up to the end of each key's block."""
    keys = scores.shape[-1]
    ends = np.minimum((np.arange(keys) // size + 1) * size, keys) - 1
    return below(np.maximum.accumulate(scores, axis=-1)[..., ends], scores)


def below_own(scores: np.ndarray, size: int) -> np.ndarray:
    """Return the powers below the largest score of each key's own block."""
    keys = np.arange(scores.shape[-1])
    largest = np.maximum.reduceat(scores, keys[::size], axis=-1)
    return below(largest[..., keys // size], scores)


def nothing_rescaled(scores: np.ndarray, size: int) -> np.ndarray:
    powers = below_so_far(scores, size)
    return powers / total(powers)


def values_not_rescaled(scores: np.ndarray, size: int) -> np.ndarray:
    return below_so_far(scores, size) / total(below_all(scores))


def sum_not_rescaled(scores: np.ndarray, size: int) -> np.ndarray:
    return below_all(scores) / total(below_so_far(scores, size))


def added(scores: np.ndarray, size: int) -> np.ndarray:
    powers = below_own(scores, size)
    return powers / total(powers)


def averaged(scores: np.ndarray, size: int) -> np.ndarray:
    """Average the blocks of which a query sees some key, each with a softmax of its own."""
    powers = below_own(scores, size)
    sums = np.add.reduceat(powers, np.arange(0, powers.shape[-1], size), axis=-1)
    own = sums[..., np.arange(powers.shape[-1]) // size]
    return np.nan_to_num(powers / own) / (sums > 0).sum(axis=-1, keepdims=True)


def in_blocks(size: int, shares: Shares) -> Callable[..., Any]:
    def wrong(ops: Any, scores: Any, mask: Any, *, masked_row: str) -> Any:
        right = ops.softmax(scores, mask, masked_row=masked_row)
        seen = np.where(mask, scores.astype(accumulator(scores.dtype)), -np.inf)
        with np.errstate(all="ignore"):
            found = rounded(shares(seen, size), scores.dtype)
        return np.where(np.isneginf(seen).all(axis=-1, keepdims=True), right, found)

    return wrong


def of_blocks(form: str, shares: Shares) -> Number:
    """Return how many keys a block has, where blocks are put together so."""

    def smaller(call: Call, graph: Graph) -> Sequence[int]:
        return [one for one in SIZES if one < graph.shapes[call.number][-1]]

    def becomes(size: float) -> Rewrite:
        by_blocks = instead("softmax", in_blocks(int(min(size, SIZES[-1])), shares))
        return only(lambda call, graph: np.isfinite(size), by_blocks)

    return Number(
        form, bound_of_none("softmax"), becomes, among=smaller, is_quick=True, is_alone=True,
        for_none="",
    )  # fmt: skip


BLOCKS = (
    of_blocks("blocks of {} keys, neither sum rescaled", nothing_rescaled),
    of_blocks("blocks of {} keys, the sum of values not rescaled", values_not_rescaled),
    of_blocks("blocks of {} keys, the sum of exponentials not rescaled", sum_not_rescaled),
    of_blocks("blocks of {} keys, each by its own largest score, added", added),
    of_blocks("blocks of {} keys, each with its own softmax, averaged", averaged),
)
