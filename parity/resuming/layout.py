"""How an array lies in memory: sums of products may round otherwise where it lies otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

WIDEST = 1 << 10  # times the numbers themselves that a layout may take


def layout_of(value: Any) -> list[int] | None:
    """Return the strides of an array in numbers, None if its rows lie one behind another.

    MLX does not tell those of bfloat16; None too.
    """
    try:
        array = value if isinstance(value, np.ndarray) else np.array(value, copy=False)
    except (ValueError, TypeError, RuntimeError):
        return None
    if array.flags.c_contiguous or min(array.strides) < 0:
        return None
    return [step // array.itemsize for step in array.strides]


def check_layout(shape: list[int], steps: list[int] | None) -> None:
    """Raise ValueError if numbers of this shape cannot have been laid out so."""
    if steps is None:
        return
    whole = all(type(step) is int for step in steps)
    if (
        not whole
        or len(steps) != len(shape)
        or min(steps) < 0
        or extent(shape, steps) > WIDEST * prod(shape)
    ):
        raise ValueError(f"steps {steps} for the shape {shape}")


def extent(shape: Sequence[int], steps: Sequence[int]) -> int:
    """Return how many numbers lie from the first to the last."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))


def laid_out(array: np.ndarray, steps: list[int] | None, put: Callable[[np.ndarray], Any]) -> Any:
    """Return an array where a model computes, with these strides. `put` takes it there."""
    if steps is None:
        return put(array)
    room = np.zeros(extent(array.shape, steps), array.dtype)
    bytes_apart = [step * array.itemsize for step in steps]
    np.lib.stride_tricks.as_strided(room, array.shape, bytes_apart)[...] = array
    there = put(room)
    if isinstance(there, np.ndarray):
        return np.lib.stride_tricks.as_strided(there, array.shape, bytes_apart)
    import mlx.core as mx

    return mx.as_strided(there, array.shape, steps)
