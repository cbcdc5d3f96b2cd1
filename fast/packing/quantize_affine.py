import numpy as np

from lockstep.fast.blocks.repack import packed
from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.quantized import QuantizedTensor


def quantize_affine(x: Array, *, bits: int, group_size: int) -> QuantizedTensor:
    """Pack numbers (..., K) in MLX's affine mode: unsigned codes, a scale and an offset a group.

    Differs from `reference.packing.quantize_affine`: in nothing; the codes are made in one buffer.
    """
    groups = x.astype(np.float32).reshape(-1, group_size)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        scales, offsets = steps(groups, np.float32(2**bits - 1))
        groups -= offsets
        groups /= scales
        np.clip(np.rint(groups, out=groups), 0, 2**bits - 1, out=groups)
        spoilt = ~np.isfinite(scales[:, 0])
        groups[spoilt] = 0
        shape = *x.shape[:-1], x.shape[-1] // group_size
        parts = scales.astype(x.dtype).reshape(shape), offsets.astype(x.dtype).reshape(shape)
    words = packed(groups.astype(np.uint8), bits).reshape(*x.shape[:-1], x.shape[-1] * bits // 32)
    return QuantizedTensor(words, *parts, bits, group_size, "affine")


def steps(groups: Array, top: np.float32) -> tuple[Array, Array]:
    """Return the scale and the offset of each group (N, group), (N, 1) both."""
    low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    below = np.abs(low) > np.abs(high)
    edges, scales = np.where(below, low, high), np.maximum((high - low) / top, np.float32(1e-7))
    np.negative(scales, out=scales, where=~below)
    count = np.rint(edges / scales)
    np.divide(edges, count, out=scales, where=count != 0)
    scales[~(np.isfinite(low) & np.isfinite(high))] = np.nan
    return scales, np.where(count != 0, edges, np.float32(0))
