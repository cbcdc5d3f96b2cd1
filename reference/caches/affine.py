"""Keys and values in MLX's affine format: codes, with a scale and an offset for each group."""

from typing import Any

import numpy as np

from lockstep.reference.checkpoint.quantized import QuantizedTensor
from lockstep.reference.shapes import Array, Keys, NewKeys

GROUPS = (64, 32)  # what MLX packs, the wider one first
SMALLEST = np.float32(1e-7)  # of a scale


class Affine:
    """Packed codes (B, G, S, D * bits / 32), scales and offsets (B, G, S, D / group).

    The group is 64 dimensions, or 32. A head that neither divides is kept as it is.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def fits(self, width: int) -> bool:
        """Tell whether MLX packs heads of this width."""
        return width % GROUPS[-1] == 0

    def encode(self, new: NewKeys) -> tuple[Array, Array, Array]:
        """Return packed codes, scales and offsets of new tokens."""
        return affine(new, self.bits, group_of(new.shape[-1]))

    def decode(self, ops: Any, parts: list[Array], like: Array) -> Keys:
        """Return the values of all codes."""
        width = like.shape[-1]
        rows = [part.reshape(-1, part.shape[-1]) for part in parts]
        group = group_of(width)
        weight = QuantizedTensor(rows[0], rows[1], rows[2], self.bits, group, "affine")
        values = ops.dequantize_affine(weight, rows=slice(None), dtype=like.dtype)
        return values.reshape(*parts[0].shape[:-1], width)


def group_of(width: int) -> int:
    """Return how many dimensions share a scale."""
    return next(size for size in GROUPS if width % size == 0)


@np.errstate(divide="ignore", over="ignore", invalid="ignore")  # of what is not finite
def affine(x: Array, bits: int, group: int) -> tuple[Array, Array, Array]:
    """Return packed codes, scales and offsets of (..., D), as `mlx.core.quantize` makes them.

        scale = (max - min) / (2^bits - 1), away from zero's side;  offset = the edge farther from 0
        then the scale is stretched so that 0 has a code, and  q = round((x - offset) / scale)

    Rounding: all in float32; scales and offsets are rounded to the dtype of `x` after the codes
    were made. Edges: a scale is at least 1e-7 before it is stretched. A value that is not finite
    spoils its group: codes 0, and a scale of NaN. (MLX leaves NaN out of the smallest and largest.)
    """
    wide = x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // group, group)
    low, high = wide.min(axis=-1), wide.max(axis=-1)
    bins = np.float32(2**bits - 1)
    scales = np.maximum((high - low) / bins, SMALLEST)
    scales = np.where(np.abs(low) > np.abs(high), scales, -scales)
    edges = np.where(np.abs(low) > np.abs(high), low, high)
    steps = np.rint(edges / scales)
    scales = np.where(steps != 0, edges / steps, scales)
    offsets = np.where(steps != 0, edges, np.float32(0))
    codes = np.rint((wide - offsets[..., None]) / scales[..., None]).clip(0, bins)
    codes = np.where(np.isnan(codes), 0, codes).astype(np.uint8)
    packed = packed_codes(codes.reshape(x.shape), bits)
    return packed, scales.astype(x.dtype), offsets.astype(x.dtype)


def packed_codes(codes: Array, bits: int) -> Array:
    """Pack the codes of each row into one little-endian stream of bits, seen as uint32 words."""
    digits = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    stream = digits.reshape(*codes.shape[:-1], codes.shape[-1] * bits)
    octets = np.packbits(stream, axis=-1, bitorder="little")
    return octets.view("<u4")
