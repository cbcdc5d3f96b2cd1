import numpy as np

from lockstep.fast.cpu.linear import blocks
from lockstep.fast.shapes import Bias, LoraDown, LoraUp, Magnitude, Outputs, Weight


def dora_rescale(
    y: Outputs, weight: Weight, bias: Bias | None, a: LoraDown, b: LoraUp, magnitude: Magnitude,
    *, scale: float,
) -> Outputs:  # fmt: skip
    """Give each row of an adapted weight its learned length, and add the bias.

    Differs from `reference.ops.dora_rescale`: a float weight is not rounded to `y.dtype` first.
    """
    lengths = np.empty(weight.shape[0], np.float32)
    down, up = a.astype(np.float32, copy=False), b.astype(np.float32, copy=False)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
        for part, block in blocks(weight):
            moved = block + np.float32(scale) * (up[part] @ down)
            lengths[part] = np.sqrt(np.square(moved).sum(axis=1))
        gain = magnitude.astype(np.float32, copy=False) / lengths
        out = y * gain.astype(y.dtype)
        return out if bias is None else out + bias.astype(y.dtype, copy=False)
