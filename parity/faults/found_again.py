"""What keys and values of earlier tokens have become when a step reads them from its cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.in_steps import in_steps
from lockstep.parity.faults.llama_cpp import in_blocks_of_32
from lockstep.parity.faults.packing import affine
from lockstep.parity.faults.passes import (
    KEYS,
    found_again,
    is_cached,
    numbered,
)
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.graph import Call, Graph, Ref
from lockstep.parity.graph.stretched import turn_of
from lockstep.reference.precision import accumulator, dtype_named, rounded

GROUP = 64


def rope_of_keys(call: Call, graph: Graph) -> Call | None:
    """Return the turn of the keys that scores are made of; None if they are not turned."""
    keys = graph.source(call, KEYS)
    return keys if keys.op == "rope" else None


def keys_before(call: Call, graph: Graph, which: str) -> tuple[Ref, ...] | None:
    turn = rope_of_keys(call, graph)
    return None if turn is None else turn.inputs[:1]


def unturned(ops: Any, keys: Any, before: Any) -> Any:
    return before


before_the_turn = found_again(unturned, None, keys_before)


Turned = Callable[[Graph, Call], Callable[..., Any]]  # of the right turn: how scores are made


def keys_turned(make: Turned) -> Rewrite:
    """Make scores of keys that turn otherwise in the cache: `wrong(ops, queries, keys, at, by)`."""

    @rewrite("attention_scores")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        turn = rope_of_keys(call, graph) if graph.steps else None
        if turn is None:
            return None
        new = call.replaced(make(graph, turn))
        return replace(new, inputs=(*new.inputs, *turn.inputs[1:3]))

    return rewritten


def turned(times: Callable[[Graph, int], np.ndarray]) -> Rewrite:
    """Turn the keys in the cache some more times: `times(graph, rows)` of each query and key."""

    def make(graph: Graph, turn: Call) -> Callable[..., Any]:
        def wrong(ops: Any, queries: Any, keys: Any, at: Any, by: Any, *, scale: float) -> Any:
            out = ops.attention_scores(queries, keys, scale=scale)
            more = times(graph, keys.shape[2])
            for count in range(1, int(more.max(initial=0)) + 1):
                keys = turn_of(turn)(ops, keys, at, by)
                scores = ops.attention_scores(queries, keys, scale=scale)
                out = np.where(more == count, scores, out)
            return out

        return wrong

    return keys_turned(make)


def steps_between(graph: Graph, rows: int) -> np.ndarray:
    passes = numbered(graph, rows)
    return np.maximum(passes[:, None] - passes[None, :], 0)


after_a_turn = turned(lambda graph, rows: is_cached(graph, rows).astype(int))
turned_again = turned(steps_between)


def turned_by_the_step(*, kept: bool) -> Rewrite:
    """Turn the keys in the cache by the position of a step's own token, as the new ones are.

    If they are `kept` so, each step adds its turn to those before it.
    """

    def make(graph: Graph, turn: Call) -> Callable[..., Any]:
        def wrong(ops: Any, queries: Any, keys: Any, at: Any, by: Any, *, scale: float) -> Any:
            out = ops.attention_scores(queries, keys, scale=scale)
            more = np.zeros_like(at[:, : keys.shape[2]])
            passes = numbered(graph, keys.shape[2])
            for step in range(1, int(passes.max(initial=0)) + 1):
                begins = int(np.searchsorted(passes, step))
                own = at[:, begins : begins + 1]
                more = np.where(passes < step, more + own if kept else own, 0)
                found = turn_of(turn)(ops, keys, more, by)
                scores = ops.attention_scores(queries, found, scale=scale)
                out = np.where((passes == step)[:, None], scores, out)
            return out

        return wrong

    return keys_turned(make)


def exchanged(*, values: bool = True) -> Rewrite:
    """Read values where keys are, and keys where values are, or these as they should be."""

    def theirs(call: Call, graph: Graph, which: str) -> tuple[Ref, ...] | None:
        beside = read_beside(call, graph)
        return None if beside is None else (beside,)

    def other(ops: Any, own: Any, theirs: Any) -> Any:
        return theirs

    return found_again(other, other if values else None, theirs)


def exchanged_in_steps() -> Rewrite:
    """Do so with a step's own keys and values too."""

    @rewrite(("attention_scores", "attention_context"))
    def everywhere(call: Call, graph: Graph) -> Call | None:
        beside = read_beside(call, graph)
        if beside is None:
            return None
        return call.with_changed(KEYS, lambda ops, own, theirs: theirs, beside)

    return in_steps(everywhere)


def read_beside(call: Call, graph: Graph) -> Ref | None:
    """Return the values that stand beside keys, or the keys beside values, of the same shape."""
    other = "attention_context" if call.op == "attention_scores" else "attention_scores"
    beside = next((one for one in graph.calls if (one.op, one.layer) == (other, call.layer)), None)
    if beside is None or graph.input_shape(beside, KEYS) != graph.input_shape(call, KEYS):
        return None
    return beside.inputs[KEYS]


def of_other_layer(which: Callable[[int], int], *, keys: bool, values: bool) -> Rewrite:
    """Read the cache of another layer, one before: all of it, or its `keys` or `values` alone."""

    def theirs(call: Call, graph: Graph, kind: str) -> tuple[Ref, ...] | None:
        other = read_by_layer(which, call, graph)
        return None if other is None else (other,)

    def exchanged(ops: Any, own: Any, other: Any) -> Any:
        return other

    return found_again(exchanged if keys else None, exchanged if values else None, theirs)


def read_by_layer(which: Callable[[int], int], call: Call, graph: Graph) -> Ref | None:
    """Return what another layer, one before, reads in the place of what a call does, if that is
    another value of the same shape.
    """
    layer = call.layer
    if layer is None or not 0 <= which(layer) < layer:
        return None
    same = (one for one in graph.calls if (one.op, one.layer) == (call.op, which(layer)))
    other = next(same, None)
    if other is None or other.inputs[KEYS] == graph.calls[call.number].inputs[KEYS]:
        return None
    alike = graph.input_shape(other, KEYS) == graph.input_shape(call, KEYS)
    return other.inputs[KEYS] if alike else None


def of_so_many_heads() -> Rewrite:
    """Read a cache of as many heads as there are queries; only the first of them were written."""

    @rewrite(("attention_scores", "attention_context"))
    def rewritten(call: Call, graph: Graph) -> Call | None:
        heads, groups = (graph.input_shape(call, index)[1] for index in (0, 1))
        if not graph.steps or heads == groups:
            return None
        first = graph.steps[0]

        def spread(x: Any) -> Any:
            rest = x[:, np.arange(groups, heads) % groups]
            return np.concatenate([x, np.zeros_like(rest)], axis=1)

        def wrong(ops: Any, queries: Any, x: Any, *more: Any, **options: Any) -> Any:
            compute = getattr(ops, call.op)
            right = compute(queries, x, *more, **options)
            steps = np.arange(right.shape[2]) >= first
            found = compute(queries, spread(x), *more, **options)
            return np.where(steps[:, None], found, right)

        return call.replaced(wrong)

    return rewritten


def axes_mixed() -> Rewrite:
    """Read what was written as (B, S, G, D) as if it were (B, G, S, D)."""

    @rewrite(("attention_scores", "attention_context"))
    def rewritten(call: Call, graph: Graph) -> Call | None:
        if not graph.steps or graph.input_shape(call, 1)[1] == 1:
            return None
        passes = numbered(graph, graph.shapes[call.number][2])

        def wrong(ops: Any, queries: Any, x: Any, *more: Any, **options: Any) -> Any:
            compute = getattr(ops, call.op)
            out = compute(queries, x, *more, **options)
            here = passes[: out.shape[2]]
            for step in np.unique(here)[1:]:
                end = int(np.searchsorted(here, step, side="right"))
                buffer = x[:, :, :end].swapaxes(1, 2).reshape(x[:, :, :end].shape)
                found = np.concatenate([buffer, x[:, :, end:]], axis=2)
                theirs = compute(queries, found, *more, **options)
                out = np.where((here == step)[:, None], theirs, out)
            return out

        return call.replaced(wrong)

    return rewritten


def in_the_basis_of_storage(*parts: str) -> Rewrite:
    """Read what was rotated by a Hadamard matrix as it lies in the cache."""

    def rotated(ops: Any, x: Any) -> Any:
        work = accumulator(x.dtype)
        return rounded(x.astype(work) @ hadamard(x.shape[-1]).astype(work), x.dtype)

    def widths(call: Call, graph: Graph, which: str) -> tuple[Ref, ...] | None:
        width = graph.input_shape(call, 1)[-1]
        return () if which in parts and width & (width - 1) == 0 else None

    return found_again(rotated, rotated, widths)


def hadamard(size: int) -> np.ndarray:
    """Return Walsh's matrix over its root, which is its own inverse."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(size)


def rounded_in_the_cache(kind: str) -> Rewrite:
    """Round what is kept, and read that."""
    return found_again(ROUNDED[kind], ROUNDED[kind], fits(kind))


def fits(kind: str) -> Callable[..., tuple[Ref, ...] | None]:
    multiple = {"q8_0": 32, "affine 8": GROUP, "affine 4": GROUP}.get(kind, 1)

    def more(call: Call, graph: Graph, which: str) -> tuple[Ref, ...] | None:
        return () if graph.input_shape(call, 1)[-1] % multiple == 0 else None

    return more


def whole_steps(x: Any, *, axis: int) -> Any:
    """Round to whole steps of 1/127 of the largest number along an axis."""
    wide = x.astype(np.float32)
    step = np.abs(wide).max(axis=axis, keepdims=True) / np.float32(127)
    step = np.where(step == 0, np.float32(1), step)
    return (np.rint(wide / step) * step).astype(x.dtype)


def by_head(ops: Any, x: Any) -> Any:
    return whole_steps(x, axis=-1)


def in_groups(bits: int) -> Callable[..., Any]:
    def change(ops: Any, x: Any) -> Any:
        packed = affine(x.reshape(-1, x.shape[-1]), bits=bits, group_size=GROUP)
        return ops.dequantize(packed, rows=slice(None), dtype=x.dtype).reshape(x.shape)

    return change


def narrowed(name: str) -> Callable[..., Any]:
    return lambda ops, x: x.astype(dtype_named(name)).astype(x.dtype)


def as_float8(name: str) -> Callable[..., Any]:
    def change(ops: Any, x: Any) -> Any:
        import ml_dtypes  # takes a while to load

        return x.astype(getattr(ml_dtypes, name)).astype(x.dtype)

    return change


BY_HEAD = "8 bits, a scale for each head of a token"
# What a rounding of the cache is called, and how it is done.
VARIANTS_OF_ROUNDING = {
    BY_HEAD: "head",
    "8 bits in blocks of 32": "q8_0",
    "8 bits in groups of 64": "affine 8",
    "4 bits in groups of 64": "affine 4",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "8 bits of float8_e4m3": "float8_e4m3fn",
    "8 bits of float8_e5m2": "float8_e5m2",
}
ROUNDED: dict[str, Callable[..., Any]] = {
    "head": by_head,
    "q8_0": in_blocks_of_32,
    "affine 8": in_groups(8),
    "affine 4": in_groups(4),
    **{name: narrowed(name) for name in ("bfloat16", "float16")},
    **{name: as_float8(name) for name in ("float8_e4m3fn", "float8_e5m2")},
}
