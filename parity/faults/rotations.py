"""Heads that turn otherwise: in other pairs, by other signs, or over themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.parity.faults.head_rows import pairs_first
from lockstep.parity.faults.turns import X, rearranged
from lockstep.parity.graph import Call, Graph


def neighbours(call: Call, graph: Graph) -> Call:
    """Pair 2j with 2j + 1."""
    places = np.arange(graph.input_shape(call, X)[-1])
    return rearranged(call, np.concatenate([places[0::2], places[1::2]]))


def halves_of_pairs(call: Call, graph: Graph) -> Call:
    """Pair halves of heads whose rows lie in pairs."""
    places = np.arange(graph.input_shape(call, X)[-1])
    return rearranged(call, pairs_first(places, 1))


def overwritten(*, first: bool) -> Callable[..., Any]:
    """Turn a head in place: the half that comes second is made of what the other has become."""

    def wrong(ops: Any, x: Any, positions: Any, frequencies: Any, *, factor: float) -> Any:
        half = frequencies.shape[-1]
        mine, other = np.s_[..., :half], np.s_[..., half:]
        if not first:
            mine, other = other, mine
        right = ops.rope(x, positions, frequencies, factor=factor)
        found, given = np.array(right), np.array(x)
        given[mine] = right[mine]
        found[other] = ops.rope(given, positions, frequencies, factor=factor)[other]
        return found

    return wrong


def angles_of_neighbours(
    ops: Any, x: np.ndarray, positions: Any, frequencies: np.ndarray, *, factor: float
) -> np.ndarray:
    """Turn j with j + D/2, but j by the angle of pair j // 2: every angle stands there twice."""
    half = frequencies.shape[-1]
    pairs = np.arange(2 * half) // 2
    first, second = (
        ops.rope(x, positions, frequencies[..., some], factor=factor)
        for some in (pairs[:half], pairs[half:])
    )
    return np.concatenate([first[..., :half], second[..., half:]], axis=-1)


def backwards(ops: Any, x: Any, positions: Any, frequencies: Any, *, factor: float) -> Any:
    """Turn the other way, by whatever positions there are."""
    return ops.rope(x, -positions, frequencies, factor=factor)


def half_negated(*, first: bool, second: bool) -> Callable[..., Any]:
    """Take x cos + rotate_half(x) sin with these halves of `rotate_half` negated."""

    def wrong(ops: Any, x: Any, positions: Any, frequencies: Any, *, factor: float) -> Any:
        half = frequencies.shape[-1]
        forth, back = (ops.rope(x, way * positions, frequencies, factor=factor) for way in (1, -1))
        one, other = (forth if first else back), (back if second else forth)
        return np.concatenate([one[..., :half], other[..., half:]], axis=-1)

    return wrong


def cos_and_sin_exchanged(
    ops: Any, x: Any, positions: Any, frequencies: Any, *, factor: float
) -> Any:
    """Take sines for cosines, and cosines for sines: a turn by a right angle less the angle."""
    back = ops.rope(x, positions, -frequencies, factor=factor)
    half = frequencies.shape[-1]
    first, second, rest = back[..., :half], back[..., half : 2 * half], back[..., 2 * half :]
    return np.concatenate([-second, first, rest], axis=-1)
