"""Keys and values in MLX's affine format: codes, with a scale and an offset for each group."""

from lockstep.reference.packing import quantize_affine
from lockstep.reference.shapes import Array


def affine(x: Array, bits: int, group: int) -> tuple[Array, Array, Array]:
    """Return packed codes, scales and offsets of (..., D), as weights are packed."""
    made = quantize_affine(x, bits=bits, group_size=group)
    return made.packed, made.scales, made.biases
