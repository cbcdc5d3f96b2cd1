"""An adapter's update added to the weight that it belongs to."""

import numpy as np

from lockstep.reference.checkpoint.adapters import Adapter
from lockstep.reference.ops.linear import TILE, row_tiles
from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Array, Weight


def changes(adapter: Adapter) -> bool:
    """Tell whether an adapter does anything. An untrained LoRA has b = 0 and does not."""
    return adapter.magnitude is not None or bool(adapter.a.any() and adapter.b.any())


def fused_weight(weight: Weight, adapter: Adapter | None, dtype: np.dtype) -> Array:
    """Return the weight (N, K) that gives by itself what weight and adapter give together.

        moved = weight + scale * b @ a
        out = moved, or with DoRA moved * magnitude / |moved|, row by row

    Without an adapter it is the weight alone, which may be a vector, in that dtype.
    Rounding: all in float32 (float64 for float64), rounded once to `dtype` at the end.
    Memory: one tile of rows besides the weight and the result.
    Raises: FloatingPointError if a finite weight would no longer be finite.
    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1; Liu et al. 2024, arXiv:2402.09353, eq. 5.
    """
    out, work = np.empty(weight.shape, dtype), accumulator(dtype)
    for number, tile in enumerate(row_tiles(weight, work)):
        rows = slice(number * TILE, number * TILE + len(tile))
        fused = tile if adapter is None else _fused_rows(tile, adapter, rows)
        out[rows] = rounded(fused, dtype)
        if (np.isfinite(tile) & ~np.isfinite(out[rows])).any():
            raise FloatingPointError(f"the sum does not fit {dtype.name}")
    return out


def _fused_rows(tile: Array, adapter: Adapter, rows: slice) -> Array:
    work = tile.dtype
    with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
        update = adapter.b[rows].astype(work, copy=False) @ adapter.a.astype(work, copy=False)
        moved = tile + work.type(adapter.scale) * update
        if adapter.magnitude is None:
            return moved
        lengths = np.sqrt(np.square(moved).sum(axis=1))
        gain = adapter.magnitude[rows].astype(work, copy=False) / lengths
        return moved * gain[:, None]
