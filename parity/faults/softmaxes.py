"""Softmaxes over other axes, and in fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.passes import numbered
from lockstep.parity.faults.rewrites import afterwards, changed_input, instead, rewrite
from lockstep.parity.faults.routers import rounded_through
from lockstep.parity.graph import Call, Graph
from lockstep.reference.precision import accumulator, dtype_named, rounded


def in_half(name: str) -> Callable[..., Any]:
    """Round scores, exponentials, their sum and the quotient to half precision.

    What is masked has the lowest number of the port's dtype. Where half precision makes that -inf,
    a query that sees nothing has no number: exp(-inf + inf).
    """

    def wrong(ops: Any, scores: Any, mask: Any, *, masked_row: str) -> Any:
        half, work = dtype_named(name), accumulator(scores.dtype)

        def step(values: Any) -> Any:
            return rounded(values, half).astype(work)

        seen = np.where(mask, step(scores), -np.inf)
        with np.errstate(all="ignore"):
            powers = step(np.exp(step(seen - seen.max(axis=-1, keepdims=True))))
            share = step(powers / step(powers.sum(axis=-1, keepdims=True)))
        blind = ~np.broadcast_to(mask, seen.shape).any(axis=-1, keepdims=True)
        port = getattr(ops, "port_dtype", scores.dtype).name
        row = masked_row if port in ("float16", name) else "nan"
        return np.where(blind, ops.softmax(scores, mask, masked_row=row), share).astype(
            scores.dtype
        )

    return wrong


def rounded_around(name: str) -> Callable[..., Any]:
    """Round scores before the softmax and shares behind it: a kernel is wide inside."""

    def wrong(ops: Any, scores: Any, mask: Any, **options: Any) -> Any:
        half = dtype_named(name)
        shares = ops.softmax(rounded(scores, half).astype(scores.dtype), mask, **options)
        return rounded(shares, half).astype(scores.dtype)

    return wrong


# What is rounded to half precision: all of the softmax, what stands around it, or one side of that.
IN_FEW_BITS: dict[str, Callable[[str], Rewrite]] = {
    "": lambda name: instead("softmax", in_half(name)),
    "before and behind it ": lambda name: instead("softmax", rounded_around(name)),
    "before it ": lambda name: changed_input("softmax", 0, rounded_through(name)),
    "behind it ": lambda name: afterwards("softmax", rounded_through(name)),
}


def with_one_more(ops: Any, scores: Any, mask: Any, **options: Any) -> Any:
    """Divide by 1 + the sum of the exponentials, as if a score of 0 took its share."""
    one = [(0, 0)] * (scores.ndim - 1) + [(0, 1)]
    seen = np.pad(np.broadcast_to(mask, scores.shape), one, constant_values=True)
    return ops.softmax(np.pad(scores, one), seen, **options)[..., :-1]


def over_queries(ops: Any, scores: Any, mask: Any, **options: Any) -> Any:
    """Share each key out among the queries that see it; one that none sees is as a blind row."""
    seen = np.broadcast_to(mask, scores.shape).swapaxes(-1, -2)
    return ops.softmax(scores.swapaxes(-1, -2), seen, **options).swapaxes(-1, -2)


def over_queries_masked_after(ops: Any, scores: Any, mask: Any, **options: Any) -> Any:
    """Do the same, and mask once more: a key that no query sees stays out."""
    shared = over_queries(ops, scores, mask, **options)
    return np.where(mask, shared, shared.dtype.type(0))


def over_heads(ops: Any, scores: Any, mask: Any, **options: Any) -> Any:
    """Share each key out among the heads; what is masked stays out."""
    shared = ops.softmax(np.moveaxis(scores, 1, -1), np.ones(1, bool), **options)
    return np.where(mask, np.moveaxis(shared, -1, 1), shared.dtype.type(0))


def over_all(*, heads: bool) -> Rewrite:
    """Share out over all keys of all queries that are fed at once: of a head, or of all heads."""
    axes = (-3, -2, -1) if heads else (-2, -1)

    @rewrite("softmax")
    def rewritten(call: Call, graph: Graph) -> Call:
        passes = numbered(graph, graph.shapes[call.number][-2])

        def wrong(ops: Any, scores: Any, mask: Any, *, masked_row: str) -> np.ndarray:
            shares = np.array(ops.softmax(scores, mask, masked_row=masked_row))
            wide = np.where(mask, scores.astype(accumulator(scores.dtype)), -np.inf)
            with np.errstate(all="ignore"):
                powers = np.nan_to_num(np.exp(wide - wide.max(axis=-1, keepdims=True)))
            here = passes[: scores.shape[-2]]
            for one in np.unique(here):
                some = powers[..., here == one, :]
                shares[..., here == one, :] = rounded(
                    some / some.sum(axis=axes, keepdims=True), scores.dtype
                )
            return shares

        return call.replaced(wrong)

    return rewritten
