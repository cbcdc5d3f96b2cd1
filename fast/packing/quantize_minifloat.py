import numpy as np

from lockstep.fast.blocks.repack import packed
from lockstep.fast.cpu.dequantize_minifloat import scale_table
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.minifloat_tensor import MINIFLOATS, MinifloatTensor

LARGEST = {"mxfp4": np.float32(6), "mxfp8": np.float32(448), "nvfp4": np.float32(6)}


def quantize_minifloat(x: Array, *, mode: str) -> MinifloatTensor:
    """Pack numbers (..., K) in one of MLX's modes mxfp4, mxfp8 and nvfp4.

    Differs from `reference.packing.quantize_minifloat`: in nothing; scales and codes of E4M3 are
    cut out of the bits of float32, codes of E2M1 counted by the borders that a number lies beyond.
    """
    bits, group = MINIFLOATS[mode]
    groups = x.astype(np.float32).reshape(-1, group)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        peaks = np.abs(groups).max(axis=1) / LARGEST[mode]
        scales = nearest_even(np.minimum(peaks, 448)) if mode == "nvfp4" else power_above(peaks)
        scales[~np.isfinite(peaks)] = 0x7F if mode == "nvfp4" else 255
        groups /= np.take(scale_table(mode), scales)[:, None]
        groups[~np.isfinite(groups)] = 0
    codes = nearest_even(groups) if mode == "mxfp8" else nearest_below(groups)
    words = packed(codes, bits).reshape(*x.shape[:-1], x.shape[-1] * bits // 32)
    return MinifloatTensor(words, scales.reshape(*x.shape[:-1], x.shape[-1] // group), mode)


def power_above(peaks: Array) -> Array:
    """Return the bytes of the powers of two that are the peaks or next above; 127 for 0."""
    bits = peaks.view(np.uint32)
    powers = np.minimum((bits + 0x7FFFFF) >> 23, 254)  # a carry out of the mantissa is a power more
    powers = np.where(bits <= 1 << 22, 0, powers)  # 2**-127, a subnormal, and what lies below
    return np.where(peaks > 0, powers, 127).astype(np.uint8)


def nearest_even(values: Array) -> Array:
    """Return the codes of E4M3 nearest to numbers up to 448, of two as near the even one."""
    bits = values.view(np.uint32)
    size = bits & 0x7FFFFFFF
    normal = (size + 0x7FFFF + (size >> 20 & 1) >> 20) - (120 << 3)
    small = np.rint(np.abs(values) * np.float32(512)).astype(np.uint32)  # eighths of 1/64
    codes = np.where(size < 121 << 23, small, normal)
    return (codes | bits >> 31 << 7).astype(np.uint8)


def nearest_below(values: Array) -> Array:
    """Return the codes of E2M1 nearest to numbers, of two as near the smaller one."""
    size, codes = np.abs(values), np.zeros(values.shape, np.uint8)
    for border in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0):
        codes += size > np.float32(border)
    codes[(values < 0) & (codes > 0)] += 8
    return codes
