"""What this machine allows a model at most: to read its weights, and to multiply by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from lockstep.parity.bench.reading import read_rate
from lockstep.parity.bench.timing import quickest
from lockstep.parity.bench.work import Work

MOST_TOKENS = 1024  # rows of a product: more make it no faster


@dataclass(frozen=True)
class Limits:
    """Measured rates, and what a model would make of them: tokens a second in each phase."""

    bytes_per_second: float
    bytes_per_token: float
    operations_per_second: float
    decode: float
    prefill: float


def limits(work: Work, kept: int, buffers: Sequence[np.ndarray], tokens: int) -> Limits:
    """Read the buffers, and multiply by a float32 matrix of each of the model's shapes: each again
    and again for a while, of which the quickest counts. A token reads `kept` bytes of the cache."""
    read, made = read_rate(buffers), product_rate(work, min(tokens, MOST_TOKENS))
    seconds = work.operations(tokens) / made
    each = work.weight_bytes + kept
    return Limits(read, each, made, read / each, tokens / seconds)


def product_rate(work: Work, tokens: int) -> float:
    """Return the operations a second of NumPy's float32 products, by a model's mix of shapes."""
    operations = seconds = 0.0
    for (rows, columns), many in work.matrices.items():
        took = product_seconds(tokens, rows, columns)
        operations, seconds = (
            operations + many * 2.0 * tokens * rows * columns,
            seconds + many * took,
        )
    return operations / seconds


def product_seconds(tokens: int, rows: int, columns: int) -> float:
    weight, out = matrix(rows, columns), np.empty((tokens, rows), np.float32)
    x = np.random.default_rng(0).standard_normal((tokens, columns), np.float32)
    return quickest(lambda: np.matmul(x, weight.T, out=out))


@cache
def matrix(rows: int, columns: int) -> np.ndarray:
    """Return a matrix of that shape, one for all lengths of prompts."""
    return np.random.default_rng(1).standard_normal((rows, columns), np.float32)
