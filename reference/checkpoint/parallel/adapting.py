"""What one rank has of an adapter: the part that goes with its part of each matrix.

Where a matrix is cut by rows, so is b, and a is whole; where it is cut by columns, so is a, and b
is whole: what the pair makes is then one part of the same sum as what the matrix makes. The lengths
that DoRA gives to rows are those of whole rows: behind such a sum every rank has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.adapters.adapter import Adapter, Adapters
from lockstep.reference.checkpoint.parallel.rank import RankCheckpoint
from lockstep.reference.checkpoint.parallel.rules import rule_of
from lockstep.reference.checkpoint.spans import Spans


def adapters_of(adapters: Adapters, checkpoint: RankCheckpoint) -> Adapters:
    """Return a rank's part of adapters that were opened for the whole checkpoint."""
    modules = {path: part_of(path, one, checkpoint) for path, one in adapters.modules.items()}
    weights = {
        name: value if (module := name.removesuffix(".weight")) == name or rule_of(module) is None
        else taken(value, checkpoint.spans(module), axis=0)
        for name, value in adapters.weights.items()
    }  # fmt: skip
    return replace(adapters, modules=modules, weights=weights)


def part_of(path: str, one: Adapter, checkpoint: RankCheckpoint) -> Adapter:
    """Return what of a module's adapter belongs to the rank's part of its matrix."""
    rule = rule_of(path)
    if rule is None:
        return one
    spans = checkpoint.spans(path)
    if rule.axis == "rows":
        lengths = None if one.magnitude is None else taken(one.magnitude, spans, axis=0)
        return replace(one, b=taken(one.b, spans, axis=-2), magnitude=lengths)
    return replace(one, a=taken(one.a, spans, axis=-1))


def bare(adapters: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return adapters of which that of one module gives its rows no length: that is done later."""
    one = adapters.get(path)
    if one is None or one.magnitude is None:
        return adapters
    return {**adapters, path: replace(one, magnitude=None)}


def taken(array: np.ndarray, spans: Spans, *, axis: int) -> np.ndarray:
    """Take spans of one axis of an array, behind each other."""
    index = np.concatenate([np.arange(first, stop) for first, stop in spans])
    return np.ascontiguousarray(array.take(index, axis=axis))
