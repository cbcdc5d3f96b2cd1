"""The same packing as `reference.packing`, on NumPy arrays, for speed."""

from lockstep.fast.packing.quantize_affine import quantize_affine
from lockstep.fast.packing.quantize_minifloat import quantize_minifloat

__all__ = ["quantize_affine", "quantize_minifloat"]
