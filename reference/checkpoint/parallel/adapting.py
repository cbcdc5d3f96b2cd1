"""What one rank has of an adapter: the part that goes with its part of each matrix.

Where a matrix is cut by rows, so is b, and a is whole; where it is cut by columns, so is a, and b
is whole: what the pair makes is then one part of the same sum as what the matrix makes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lockstep.reference.checkpoint.adapters.adapter import Adapter, Adapters
from lockstep.reference.checkpoint.errors import InputError, show
from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint
from lockstep.reference.checkpoint.parallel.rules import rule_of
from lockstep.reference.checkpoint.spans import Spans


def adapters_of(adapters: Adapters, checkpoint: RankCheckpoint) -> Adapters:
    """Return a rank's part of adapters that were opened for the whole checkpoint.

    Raises: InputError for DoRA of a matrix that is cut by columns: the length of a row is that of
    the whole row, and no rank has it.
    """
    modules = {
        path: part_of(adapters, path, one, checkpoint) for path, one in adapters.modules.items()
    }
    weights = {
        name: value if (module := name.removesuffix(".weight")) == name or rule_of(module) is None
        else taken(value, checkpoint.spans(module), axis=0)
        for name, value in adapters.weights.items()
    }  # fmt: skip
    return replace(adapters, modules=modules, weights=weights)


def part_of(adapters: Adapters, path: str, one: Adapter, checkpoint: RankCheckpoint) -> Adapter:
    rule = rule_of(path)
    if rule is None:
        return one
    spans = checkpoint.spans(path)
    if rule.axis == "rows":
        lengths = None if one.magnitude is None else taken(one.magnitude, spans, axis=0)
        return replace(one, b=taken(one.b, spans, axis=-2), magnitude=lengths)
    if one.magnitude is not None:
        what = f"DoRA of {show(path)}, whose rows are cut among ranks, is not supported"
        raise InputError(adapters.path or checkpoint.path, what, "--tensor-parallel")
    return replace(one, a=taken(one.a, spans, axis=-1))


def taken(array: np.ndarray, spans: Spans, *, axis: int) -> np.ndarray:
    """Take spans of one axis of an array, behind each other."""
    index = np.concatenate([np.arange(first, stop) for first, stop in spans])
    return np.ascontiguousarray(array.take(index, axis=axis))
