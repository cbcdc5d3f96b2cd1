"""Packing matrices as engines do: what a port holds that quantised MODEL's own weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.reference.checkpoint.block_tensor import BlockTensor
from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS, MinifloatTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.ops.dequantize_affine import unpack_codes
from lockstep.reference.ops.dequantize_minifloat import ELEMENTS, SCALES

LARGEST = {"mxfp4": 6.0, "nvfp4": 6.0, "mxfp8": 448.0}  # of the numbers that a code can be


def packed_codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return the uint32 words of rows of unsigned codes: one stream of bits, lowest first."""
    digits = np.unpackbits(codes.astype(np.uint8)[..., None], -1, count=bits, bitorder="little")
    stream = np.packbits(digits.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")
    return np.ascontiguousarray(stream).view("<u4")


def recoded(weight: Any, codes: np.ndarray) -> Any:
    """Return a packed matrix with other codes."""
    return replace(weight, packed=packed_codes(codes, weight.bits))


def codes_of(weight: QuantizedTensor | MinifloatTensor) -> np.ndarray:
    return unpack_codes(weight.packed, weight.bits)


def affine(weight: np.ndarray, *, bits: int, group_size: int) -> QuantizedTensor:
    """Pack as MLX's `quantize` does: the edge of a group that is farther from 0 is on the grid.

    Scales and biases are kept in the dtype of the weight, as MLX keeps them.
    """
    groups = weight.astype(np.float32).reshape(len(weight), -1, group_size)
    steps = np.float32(2**bits - 1)
    high, low = groups.max(axis=-1), groups.min(axis=-1)
    from_below = np.abs(low) > np.abs(high)
    scales = np.maximum((high - low) / steps, np.float32(1e-7))
    scales = np.where(from_below, scales, -scales)
    edges = np.where(from_below, low, high)
    count = np.round(edges / scales)
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = np.where(count == 0, scales, edges / count)
    biases = np.where(count == 0, np.float32(0), edges)
    codes = np.round((groups - biases[..., None]) / scales[..., None]).clip(0, steps)
    return QuantizedTensor(
        packed_codes(codes.reshape(weight.shape), bits), scales.astype(weight.dtype),
        biases.astype(weight.dtype), bits, group_size, "affine",
    )  # fmt: skip


def minifloat(weight: np.ndarray, *, mode: str, to_even: bool) -> MinifloatTensor:
    """Pack as MLX's mxfp4 and mxfp8 do: a power of two for a group, each number to the nearest.

    Of two as near ones it is the even code, or (mxfp4 on a CPU) the smaller one.
    """
    bits, group_size = MINIFLOATS[mode]
    groups = weight.astype(np.float32).reshape(len(weight), -1, group_size)
    with np.errstate(divide="ignore"):
        powers = np.ceil(np.log2(np.abs(groups).max(axis=-1) / LARGEST[mode]))
    powers = np.clip(np.nan_to_num(powers, neginf=-127), -127, 127)
    scales = (powers + 127).astype(np.uint8)
    levels = groups / SCALES[mode][scales].astype(np.float32)[..., None]
    codes = nearest(levels, ELEMENTS[mode], to_even=to_even)
    return MinifloatTensor(packed_codes(codes.reshape(weight.shape), bits), scales, mode)


def nearest(values: np.ndarray, levels: np.ndarray, *, to_even: bool) -> np.ndarray:
    """Return the code of the nearest level, of two as near ones the even or the smaller one."""
    half = len(levels) // 2
    sizes = np.where(np.isfinite(levels[:half]), levels[:half], np.inf)
    size = np.minimum(np.abs(values), sizes[np.isfinite(sizes)].max())
    above = np.searchsorted(sizes, size).clip(0, half - 1)
    below = np.maximum(above - 1, 0)
    up, down = sizes[above] - size, size - sizes[below]
    chosen = np.where((up < down) | ((up == down) & (above % 2 == 0) & to_even), above, below)
    return (chosen + np.where(np.signbit(values), half, 0)).astype(np.uint8)


def q8_0(weight: np.ndarray) -> BlockTensor:
    """Pack as llama.cpp's Q8_0 does: signed bytes, the largest of a block being 127."""
    blocks = weight.astype(np.float32).reshape(-1, 32)
    step = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    scaled = blocks * inverse(step)
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    return of_blocks("Q8_0", weight, step, codes.view(np.uint8))


def q4_0(weight: np.ndarray) -> BlockTensor:
    """Pack as llama.cpp's Q4_0 does: the largest of a block, whatever its sign, being -8."""
    blocks = weight.astype(np.float32).reshape(-1, 32)
    largest = np.abs(blocks).argmax(axis=-1, keepdims=True)
    step = np.take_along_axis(blocks, largest, axis=-1) / np.float32(-8)
    codes = np.trunc(blocks * inverse(step) + np.float32(8.5)).clip(0, 15).astype(np.uint8)
    return of_blocks("Q4_0", weight, step, codes[:, :16] | codes[:, 16:] << 4)


def inverse(step: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.where(step == 0, np.float32(0), np.float32(1) / step)


def of_blocks(kind: str, weight: np.ndarray, step: np.ndarray, codes: np.ndarray) -> BlockTensor:
    """Put a float16 step before the codes of each block."""
    octets = np.concatenate([step.astype("<f2").view(np.uint8), codes], axis=1)
    return BlockTensor(octets.reshape(len(weight), -1), kind)
