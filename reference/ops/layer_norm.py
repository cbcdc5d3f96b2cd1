import numpy as np

from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Gain, Hidden


def layer_norm(x: Hidden, gain: Gain, bias: Gain, *, eps: float) -> Hidden:
    """Centre each vector, scale it to unit variance, multiply it by a gain and add a bias.

        centred = x - mean(x)
        out = centred / sqrt(mean(centred**2) + eps) * gain + bias      (means over the last axis)

    Rounding: gain and bias are rounded to `x.dtype` (exact if they are no finer); everything is
    computed in float32 (float64 for float64) and rounded once.
    Edges: a constant row whose mean is exact gives the bias, or NaN if eps is 0. A row whose
    squares alone overflow float32 gives the bias; one whose sum overflows gives NaN, as does one
    that holds an infinity or NaN. The variance divides by the width, not by one less.
    Varies by model: `eps`; Llama and Qwen subtract no mean and add nothing, see `rms_norm`.
    Source: Ba et al. 2016, arXiv:1607.06450, eq. 4.
    """
    work = accumulator(x.dtype)
    wide = x.astype(work, copy=False)
    gain, bias = (rounded(part, x.dtype).astype(work, copy=False) for part in (gain, bias))
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        centred = wide - np.mean(wide, axis=-1, keepdims=True, dtype=work)
        variance = np.mean(centred * centred, axis=-1, keepdims=True, dtype=work)
        normed = centred / np.sqrt(variance + work.type(eps))
        return rounded(normed * gain + bias, x.dtype)
