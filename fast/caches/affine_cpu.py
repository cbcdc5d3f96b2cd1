"""Keys and values in MLX's affine format, on NumPy arrays."""

from lockstep.fast.packing import quantize_affine
from lockstep.fast.shapes import Array


def affine(x: Array, bits: int, group: int) -> tuple[Array, Array, Array]:
    """Return packed codes, scales and offsets of (..., D), as weights are packed."""
    made = quantize_affine(x, bits=bits, group_size=group)
    return made.packed, made.scales, made.biases
