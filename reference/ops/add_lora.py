from math import prod

import numpy as np

from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Inputs, LoraDown, LoraUp, Outputs


def add_lora(y: Outputs, x: Inputs, a: LoraDown, b: LoraUp, *, scale: float) -> Outputs:
    """Add the contribution of a low-rank adapter to a projection's output.

        out = y + scale * (x @ a.T) @ b.T

    `scale` is the whole factor: nothing is divided by the rank here.
    Rounding: `a` and `b` keep the precision that they are stored in; both products and the factor
    are in float32 (float64 for float64), rounded once to `y.dtype` before the sum, which rounds
    again.
    Edges: `b` = 0 gives `y`, with -0 turned into 0; NaN and infinity propagate.
    Varies by model: mlx-lm stores the factor, PEFT alpha and the rank; the readers in
    `checkpoint/adapters` work the factor out.
    Raises: ValueError if the widths or the ranks differ.
    Source: Hu et al. 2021, arXiv:2106.09685, eq. 3.
    """
    rank, columns = a.shape
    if x.shape[-1] != columns or b.shape != (y.shape[-1], rank):
        raise ValueError(f"add_lora: x={x.shape}, a={a.shape}, b={b.shape} do not make y={y.shape}")
    work = accumulator(y.dtype)
    flat = x.reshape(prod(x.shape[:-1]), columns).astype(work, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        inner = flat @ a.T.astype(work, copy=False)  # (B*L, R)
        delta = (inner @ b.T.astype(work, copy=False)) * work.type(scale)
        return y + rounded(delta, y.dtype).reshape(y.shape)
