"""From numbers to packed weights, as MLX packs them: what `dequantize` turns back."""

from lockstep.reference.packing.quantize_affine import quantize_affine
from lockstep.reference.packing.quantize_minifloat import quantize_minifloat

__all__ = ["quantize_affine", "quantize_minifloat"]
