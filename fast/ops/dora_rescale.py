import mlx.core as mx

from lockstep.fast.ops.dequantize import dequantize
from lockstep.fast.shapes import Bias, LoraDown, LoraUp, Magnitude, Outputs, Weight
from lockstep.reference.checkpoint.block_tensor import Packed


def dora_rescale(
    y: Outputs, weight: Weight, bias: Bias | None, a: LoraDown, b: LoraUp, magnitude: Magnitude,
    *, scale: float,
) -> Outputs:  # fmt: skip
    """Give each row of an adapted weight its learned length, and add the bias.

    Differs from `reference.ops.dora_rescale`: a packed weight is unpacked whole, for each call.
    """
    if isinstance(weight, Packed):
        plain = dequantize(weight, rows=slice(None), dtype=mx.float32)
    else:
        plain = weight.astype(y.dtype).astype(mx.float32)
    moved = plain + scale * (b.astype(mx.float32) @ a.astype(mx.float32))
    gain = magnitude.astype(mx.float32) / mx.sqrt(mx.square(moved).sum(axis=1))
    out = y * gain.astype(y.dtype)
    return out if bias is None else out + bias.astype(y.dtype)
