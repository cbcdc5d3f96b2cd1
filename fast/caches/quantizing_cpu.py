"""Codes of keys and values, made on NumPy arrays."""

import numpy as np

from lockstep.fast.blocks.repack import packed
from lockstep.fast.shapes import Array


def absmax(x: Array, group: int) -> tuple[Array, Array]:
    """Return int8 codes of (..., D) and the scale of each group of dimensions.

    Differs from the reference: in nothing; the codes are made in one buffer.
    """
    groups = x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // group, group)
    scales = (np.maximum(groups.max(axis=-1), -groups.min(axis=-1)) / 127).astype(x.dtype)
    divisors = scales.astype(np.float32)
    divisors[divisors == 0] = 1
    with np.errstate(invalid="ignore"):
        groups /= divisors[..., None]
        np.clip(np.rint(groups, out=groups), -127, 127, out=groups)
        groups[np.isnan(groups)] = 0
        return groups.astype(np.int8).reshape(x.shape), scales


def from_absmax(codes: Array, scales: Array) -> Array:
    """Return codes times scales, in the dtype of the scales."""
    groups = codes.reshape(*scales.shape, codes.shape[-1] // scales.shape[-1])
    with np.errstate(invalid="ignore"):
        out = groups.astype(scales.dtype) * scales[..., None]
    return out.reshape(codes.shape)


@np.errstate(divide="ignore", over="ignore", invalid="ignore")  # of what is not finite
def affine(x: Array, bits: int, group: int) -> tuple[Array, Array, Array]:
    """Return packed codes, scales and offsets of (..., D), to the bit as MLX makes them."""
    groups = x.astype(np.float32).reshape(-1, group)
    low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    scales = np.maximum((high - low) / np.float32(2**bits - 1), np.float32(1e-7))
    below = np.abs(low) > np.abs(high)
    edges = np.where(below, low, high)
    np.negative(scales, out=scales, where=~below)
    steps = np.rint(edges / scales)
    np.divide(edges, steps, out=scales, where=steps != 0)
    offsets = np.where(steps != 0, edges, np.float32(0))
    groups -= offsets
    groups /= scales
    np.clip(np.rint(groups, out=groups), 0, 2**bits - 1, out=groups)
    groups[np.isnan(groups)] = 0
    codes = groups.astype(np.uint8)
    shape = *x.shape[:-1], x.shape[-1] // group
    words = packed(codes, bits).reshape(*x.shape[:-1], x.shape[-1] * bits // 32)
    return words, scales.astype(x.dtype).reshape(shape), offsets.astype(x.dtype).reshape(shape)
