"""Numbers in 8 bits or 4 beside the scale of a row, a tile or all of them, as engines keep them."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.parity.faults.packing import LARGEST, inverse, nearest
from lockstep.reference.ops.dequantize_minifloat import ELEMENTS
from lockstep.reference.precision import rounded

FLOAT32 = np.float32
Tile = tuple[int | None, int | None]  # rows and columns that share a scale, None all there are
A_ROW: Tile = (1, None)
A_MATRIX: Tile = (None, None)
NF4_BLOCK = 64
# NormalFloat of 4 bits: quantiles of the normal distribution, of which 0 is one and ±1 are the ends
# (Dettmers and others, QLoRA, appendix E).
NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], FLOAT32)  # fmt: skip


def largest_in(x: np.ndarray, tile: Tile) -> np.ndarray:
    """Return for each number (R, C) the largest size in its tile; the last ones may be short."""
    high, wide = (one or max(length, 1) for one, length in zip(tile, x.shape, strict=True))
    sizes = np.abs(x.astype(FLOAT32))
    pad = [(0, -length % step) for length, step in zip(x.shape, (high, wide), strict=True)]
    full = np.pad(sizes, pad)
    tiles = full.reshape(full.shape[0] // high, high, full.shape[1] // wide, wide)
    largest = tiles.max(axis=(1, 3), initial=0.0)
    return largest.repeat(high, axis=0)[: x.shape[0]].repeat(wide, axis=1)[:, : x.shape[1]]


def int8(
    x: np.ndarray,
    tile: Tile = A_ROW,
    steps: float = 127,
    held: Any = FLOAT32,
    *,
    divided: bool = False,
) -> np.ndarray:
    """Round (R, C) to whole steps, of which a tile's largest number is so many, ties to even.

    The step is `held` in a dtype. Numbers are multiplied by its inverse, or `divided` by it.
    """
    step = as_held(largest_in(x, tile) / FLOAT32(steps), held)
    wide = x.astype(FLOAT32)
    levels = over(wide, step) if divided else wide * inverse(step)
    codes = np.rint(levels).clip(-128, 127)
    return (codes * step).astype(FLOAT32)


def fp8(x: np.ndarray, tile: Tile = A_ROW, held: Any = FLOAT32) -> np.ndarray:
    """Round (R, C) to float8 (e4m3), a tile's largest number being the largest of those."""
    levels = ELEMENTS["mxfp8"]
    step = as_held(largest_in(x, tile) / FLOAT32(LARGEST["mxfp8"]), held)
    codes = nearest(x.astype(FLOAT32) * inverse(step), levels, to_even=True)
    return (levels[codes] * step).astype(FLOAT32)


def fp8_as_it_is(x: np.ndarray) -> np.ndarray:
    """Round (R, C) to float8 (e4m3) without a scale."""
    levels = ELEMENTS["mxfp8"]
    return levels[nearest(x.astype(FLOAT32), levels, to_even=True)].astype(FLOAT32)


def over(x: np.ndarray, step: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(step == 0, FLOAT32(0), x / step)


def as_held(step: np.ndarray, held: Any) -> np.ndarray:
    return rounded(step, np.dtype(held)).astype(FLOAT32)


def nf4(x: np.ndarray) -> np.ndarray:
    """Round to 4-bit NormalFloat, 64 numbers in reading order to a scale, as bitsandbytes does; the
    last block may be short.
    """
    padded = np.pad(x.astype(FLOAT32).ravel(), (0, -x.size % NF4_BLOCK))
    blocks = padded.reshape(-1, NF4_BLOCK)
    scale = np.abs(blocks).max(axis=-1, keepdims=True)
    borders = (NF4[1:] + NF4[:-1]) / FLOAT32(2)
    codes = np.searchsorted(borders, blocks * inverse(scale), side="left")
    return (NF4[codes] * scale).ravel()[: x.size].reshape(x.shape)
