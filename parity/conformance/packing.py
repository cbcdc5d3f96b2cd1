"""Packed matrices by a recipe: every code, and scales that hurt."""

import numpy as np

from lockstep.parity.conformance.case import Given
from lockstep.parity.conformance.values import type_said
from lockstep.reference.checkpoint.block_tensor import BLOCKS, BlockTensor, Packed
from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS, MinifloatTensor
from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.precision import rounded

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)


def affine(
    rows: int, columns: int, bits: int, group: int, seed: int, dtype: np.dtype
) -> QuantizedTensor:
    """Return codes at random; the first group has a scale of 0, which leaves its offset."""
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 2**32, (rows, columns * bits // 32), np.uint32)
    scales = rng.standard_normal((rows, columns // group)) / 2**bits
    offsets = rng.standard_normal((rows, columns // group))
    scales.flat[:1] = 0
    parts = rounded(scales, dtype), rounded(offsets, dtype)
    return QuantizedTensor(packed, *parts, bits, group, "affine")


def minifloat(rows: int, columns: int, mode: str, seed: int) -> MinifloatTensor:
    """Return codes at random, with scales near 1, nvfp4's first subnormal: none is NaN."""
    rng = np.random.default_rng(seed)
    bits, group = MINIFLOATS[mode]
    packed = rng.integers(0, 2**32, (rows, columns * bits // 32), np.uint32)
    if mode == "mxfp8":  # two of its codes are NaN
        codes = packed.view(np.uint8)
        codes[(codes & 0x7F) == 0x7F] = 0
    low, high = (0x28, 0x40) if mode == "nvfp4" else (120, 132)
    scales = rng.integers(low, high, (rows, columns // group)).astype(np.uint8)
    if mode == "nvfp4":
        scales.flat[0] = 1
    return MinifloatTensor(packed, scales, mode)


def blocks(rows: int, columns: int, format: str, seed: int) -> BlockTensor:
    """Return blocks at random. The scales of the first one hurt: one of `HALVES`, by the seed."""
    rng = np.random.default_rng(seed)
    weights, size = BLOCKS[format]
    data = rng.integers(0, 256, (rows, columns // weights, size)).astype(np.uint8)
    for place in SCALES[format]:
        data[..., place] = rng.integers(0, 256, data.shape[:-1])
        data[..., place + 1] = rng.integers(0x20, 0x38, data.shape[:-1])  # a half of 0.01 to 0.5
        data[0, 0, place : place + 2] = HALVES[seed % len(HALVES)]
    if format == "MXFP4":
        data[..., 0] = rng.integers(120, 132, data.shape[:-1])
    return BlockTensor(data.reshape(rows, -1), format)


# 0.25, 0, the largest subnormal, and -0.25, low byte first.
HALVES = ((0x00, 0x34), (0x00, 0x00), (0xFF, 0x03), (0x00, 0xB4))
# Where the halves of a block begin that its codes are multiplied by.
SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,),
    "MXFP4": (), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip


def given(packed: Packed, seed: int, dtype: np.dtype) -> Given:
    """Return a packed matrix with the expression that makes it."""
    rows, columns = packed.shape
    if isinstance(packed, QuantizedTensor):
        form = f"{packed.bits}, {packed.group_size}, {seed}, {type_said(dtype)}"
        return Given(packed, f"affine({rows}, {columns}, {form})")
    if isinstance(packed, MinifloatTensor):
        return Given(packed, f"minifloat({rows}, {columns}, {packed.mode!r}, {seed})")
    return Given(packed, f"blocks({rows}, {columns}, {packed.format!r}, {seed})")
