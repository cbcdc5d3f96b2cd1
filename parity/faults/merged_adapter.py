"""Adapters that were added into the matrix, which was then rounded or packed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lockstep.parity.faults.adapter_layers import FACTORS, factor_of
from lockstep.parity.faults.fault import Rewrite
from lockstep.parity.faults.packing import affine, q4_0, q8_0
from lockstep.parity.faults.rewrites import rewrite
from lockstep.parity.faults.tensors import dense
from lockstep.parity.graph import Call, Derived, Graph
from lockstep.reference.checkpoint.checkpoint import StoredFormat
from lockstep.reference.checkpoint.dtypes import FLOATS, numpy_dtype
from lockstep.reference.precision import dtype_named, rounded

IN_BLOCKS = {"Q8_0": q8_0, "Q4_0": q4_0}  # of GGUF, those that have one way of being packed


def adds_nothing(call: Call) -> bool:
    """Say whether an adapter is of noughts alone, as none is that was trained, or is to be."""
    factors = (factor_of(call.inputs[index]) for index in FACTORS[call.op])
    return not any(one.value.any() for one in factors)


def merged(
    pack: Callable[..., Any], when: Callable[[Any], bool], factors: str = "float32"
) -> Rewrite:
    """Multiply by what `pack(sum, weight)` makes of the matrix with the update added to it.

    The update is the product of `factors` of that dtype.

    It is done where the update is added, in the place of the projection and of that: a part of it
    alone would be an adapter that is not there.
    """

    @rewrite("add_lora")
    def rewritten(call: Call, graph: Graph) -> Call | None:
        projection = graph.source(call, 0)
        stored = graph.stored.get(projection.tensor(1) or "")
        if projection.op != "linear" or stored is None or not when(stored):
            return None
        if has_lengths(call, graph):
            return None
        if adds_nothing(call):
            return call.with_options()  # nothing to merge, unless a bug brings an adapter here
        held = dtype_named(factors)
        change = partial(with_update, pack, held, call.options["scale"], stored)
        matrix = Derived(change, (projection.inputs[1], *call.inputs[2:4]))
        new = replace(call, inputs=(*call.inputs, matrix, projection.inputs[2]))
        return new.replaced(by_one_matrix)

    return rewritten


def by_one_matrix(
    ops: Any, y: Any, x: Any, a: Any, b: Any, matrix: Any, bias: Any, *, scale: float
) -> Any:
    return ops.linear(x, matrix, bias)


def has_lengths(adds: Call, graph: Graph) -> bool:
    return any(graph.calls[one].op == "dora_rescale" for one in graph.consumers[adds.number])


def with_update(
    pack: Any, held: Any, scale: float, stored: StoredFormat, ops: Any, weight: Any, a: Any, b: Any
) -> Any:
    a, b = (rounded(factor, held).astype(np.float32) for factor in (a, b))
    update = np.float32(scale) * (b @ a)
    return pack(dense(ops, weight), update, stored)


def sum_in(name: str) -> Callable[..., Any]:
    """Round weight and update to half precision, then their sum."""

    def pack(plain: Any, update: Any, stored: StoredFormat) -> Any:
        half = dtype_named(name)
        return rounded(rounded(plain, half) + rounded(update, half), half)

    return pack


def packed_again(plain: np.ndarray, update: np.ndarray, stored: StoredFormat) -> Any:
    """Pack the sum as the base is packed."""
    if stored.dtype in IN_BLOCKS:
        return IN_BLOCKS[stored.dtype](plain + update)
    bits, group_size = stored.bits or 4, stored.group_size or 64
    return affine(in_dtype_of_scales(plain + update, stored), bits=bits, group_size=group_size)


def packed_by_default(plain: np.ndarray, update: np.ndarray, stored: StoredFormat) -> Any:
    """Pack the sum in MLX's default form, 4 bits in groups of 64."""
    return affine(in_dtype_of_scales(plain + update, stored), bits=4, group_size=64)


def in_dtype_of_scales(plain: np.ndarray, stored: StoredFormat) -> np.ndarray:
    tag = stored.scale_dtype
    return rounded(plain, numpy_dtype(tag)) if tag in FLOATS else plain


def can_be_packed(stored: Any) -> bool:
    """Say whether it is known how a matrix of this form is packed."""
    return stored.mode == "affine" or stored.dtype in IN_BLOCKS


def other_than_default(stored: Any) -> bool:
    ours = (stored.mode, stored.bits, stored.group_size)
    return stored.packed and ours != ("affine", 4, 64) and stored.shape[-1] % 64 == 0
