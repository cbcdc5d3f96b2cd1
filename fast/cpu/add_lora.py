from math import prod

import numpy as np

from lockstep.fast.shapes import Inputs, LoraDown, LoraUp, Outputs


def add_lora(y: Outputs, x: Inputs, a: LoraDown, b: LoraUp, *, scale: float) -> Outputs:
    """Add the contribution of a low-rank adapter to a projection's output.

    Differs from `reference.ops.add_lora`: in nothing.
    """
    rank, columns = a.shape
    if x.shape[-1] != columns or b.shape != (y.shape[-1], rank):
        raise ValueError(f"add_lora: x={x.shape}, a={a.shape}, b={b.shape} do not make y={y.shape}")
    flat = x.reshape(prod(x.shape[:-1]), columns).astype(np.float32, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        delta = flat @ a.T.astype(np.float32, copy=False) @ b.T.astype(np.float32, copy=False)
        delta = (delta * np.float32(scale)).astype(y.dtype, copy=False)
        return y + delta.reshape(y.shape)
