"""Keys and values in MLX's affine format, on the device."""

import mlx.core as mx

from lockstep.fast.shapes import Array


def affine(x: Array, bits: int, group: int) -> tuple[Array, Array, Array]:
    """Return packed codes, scales and offsets of (..., D): MLX's own."""
    packed, scales, offsets = mx.quantize(x, bits=bits, group_size=group)
    return packed, scales, offsets
