import numpy as np

from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.shapes import Array

SMALLEST = np.float32(1e-7)  # of a step, before it is stretched


def quantize_affine(x: Array, *, bits: int, group_size: int) -> QuantizedTensor:
    """Pack numbers (..., K) in MLX's affine mode: unsigned codes, a scale and an offset a group.

        edge = of a group's smallest and largest, the one farther from 0
        scale = (max - min) / (2**bits - 1), negative if the edge is the largest
        scale = edge / round(edge / scale), so that 0 has a code
        code = round((x - edge) / scale), from 0 to 2**bits - 1

    The last axis is cut into groups; where all rounds to code 0, the offset is 0.
    Rounding: all in float32, halves to even. Scales and offsets are rounded to the dtype of `x`
    after the codes were made.
    Edges: a step is at least 1e-7. A value that is not finite spoils its group: codes 0, scale NaN.
    Varies by model: `bits` and `group_size`, tensor by tensor.
    Source: mlx.core.quantize, whose published formula (scale from the range, offset its lower
    end) is not what it computes.
    """
    groups = x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // group_size, group_size)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    below, top = np.abs(low) > np.abs(high), np.float32(2**bits - 1)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        steps = np.maximum((high - low) / top, SMALLEST)
        scales, edges = np.where(below, steps, -steps), np.where(below, low, high)
        count = np.rint(edges / scales)
        scales = np.where(count != 0, edges / count, scales)
        offsets = np.where(count != 0, edges, np.float32(0))
        codes = np.rint((groups - offsets[..., None]) / scales[..., None]).clip(0, top)
        scales = np.where(np.isfinite(low) & np.isfinite(high), scales, np.float32(np.nan))
        codes = np.where(np.isfinite(scales)[..., None] & np.isfinite(codes), codes, 0)
        parts = scales.astype(x.dtype), offsets.astype(x.dtype)
    packed = pack_codes(codes.astype(np.uint8).reshape(x.shape), bits)
    return QuantizedTensor(packed, *parts, bits, group_size, "affine")


def pack_codes(codes: Array, bits: int) -> Array:
    """Pack the codes of each row into one little-endian stream of bits, seen as uint32 words."""
    digits = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    stream = digits.reshape(*codes.shape[:-1], codes.shape[-1] * bits)
    return np.packbits(stream, axis=-1, bitorder="little").view("<u4")
