"""ALiBi, in a model that has none: scores are lowered by the distance of their keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph


def even_slopes(heads: int) -> np.ndarray:
    """Return the slopes of ALiBi (Press et al., 2022) for a power of two: 2^(-8 h / H), h from 1
    on. Ports take them for any other H too.
    """
    return 2.0 ** (-8 * np.arange(1, heads + 1) / heads)


def slopes(heads: int) -> np.ndarray:
    """Return the same where H is no power of two: those of the next lower one come first, then
    every other of twice as many.
    """
    whole = 2 ** int(math.log2(heads))
    more = np.arange(1, 2 * (heads - whole), 2) / (2 * whole)
    return np.concatenate([even_slopes(whole), 2.0 ** (-8 * more)])


def lowered_by(slopes: Callable[[int], np.ndarray]) -> Rewrite:
    """Lower each score by how far its key lies before its query, times the slope of its head."""

    def wrong(ops: Any, scores: Any) -> Any:
        queries, keys = scores.shape[-2:]
        before = np.arange(queries)[:, None] - np.arange(keys)
        lower = slopes(scores.shape[-3])[:, None, None] * before
        return scores - lower.astype(scores.dtype)

    return rewrite("attention_scores")(lambda call, graph: call.followed(wrong))


def is_uneven(call: Call, graph: Graph) -> bool:
    return call.op == "attention_scores" and graph.shapes[call.number][-3].bit_count() > 1
