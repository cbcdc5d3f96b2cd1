import mlx.core as mx

from lockstep.fast.shapes import Inputs, LoraDown, LoraUp, Outputs


def add_lora(y: Outputs, x: Inputs, a: LoraDown, b: LoraUp, *, scale: float) -> Outputs:
    """Add the contribution of a low-rank adapter to a projection's output.

    Differs from `reference.ops.add_lora`: in nothing; two small products in float32.
    """
    rank, columns = a.shape
    if x.shape[-1] != columns or b.shape != (y.shape[-1], rank):
        raise ValueError(f"add_lora: x={x.shape}, a={a.shape}, b={b.shape} do not make y={y.shape}")
    inner = x.astype(mx.float32) @ a.astype(mx.float32).T  # (B, L, R)
    return y + (scale * (inner @ b.astype(mx.float32).T)).astype(y.dtype)
