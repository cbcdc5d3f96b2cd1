"""Which axes of a port's cache are heads and slots: one layout for all passes of a tensor."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """How many heads a cache has, by its place among the counts that there may be, and where."""

    count: int
    behind: bool  # heads behind tokens


def layouts_of(
    shapes: Collection[Shape], batch: int, counts: Sequence[int], width: int
) -> list[Layout]:
    """Return the layouts that all shapes may have, the usual one first.

    `counts` are the numbers of heads that there may be, the right one first.
    """
    every = [Layout(count, behind) for count in range(len(counts)) for behind in (False, True)]
    return [one for one in every if all(fits(x, one, batch, counts, width) for x in shapes)]


def fits(shape: Shape, layout: Layout, batch: int, counts: Sequence[int], width: int) -> bool:
    count = counts[layout.count]
    if is_flat(shape, batch, counts, width):
        return layout.behind and shape[2] == count * width
    shape = (1, *shape) if len(shape) == 3 and batch == 1 else shape
    if len(shape) != 4 or shape[0] != batch or shape[3] != width:
        return False
    return shape[2 if layout.behind else 1] == count


def is_flat(shape: Shape, batch: int, counts: Sequence[int], width: int) -> bool:
    """Say whether heads and their width are one axis, (B, S, heads * D)."""
    many = [count * width for count in counts]
    return len(shape) == 3 and shape[0] == batch and shape[2] in many


def laid_out(
    x: np.ndarray, layout: Layout, batch: int, counts: Sequence[int], width: int
) -> np.ndarray:
    """Return a cache of that layout as (B, heads, S, D)."""
    if is_flat(x.shape, batch, counts, width):
        x = x.reshape(*x.shape[:2], counts[layout.count], width)
    x = x[None] if x.ndim == 3 else x
    return x.swapaxes(1, 2) if layout.behind else x


def repeated(x: np.ndarray, groups: int) -> str:
    """Say what lies in the heads of a cache that has one for each query head.

    "each": every key head as often as queries read it; "again": all of them, one after another;
    "zeros": nothing behind them; "": anything else.
    """
    times = x.shape[1] // groups
    first, rest = x[:, :groups], x[:, groups:]
    if not rest.any():
        return "zeros"
    if np.array_equal(x, np.repeat(x[:, ::times], times, axis=1)):
        return "each"
    return "again" if np.array_equal(x, np.tile(first, (1, times, 1, 1))) else ""


def unmixed(x: np.ndarray) -> np.ndarray:
    """Return (B, G, S, D) that was written as (B, S, G, D)."""
    batch, groups, slots, width = x.shape
    return x.reshape(batch, slots, groups, width).swapaxes(1, 2)
