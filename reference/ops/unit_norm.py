import numpy as np

from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Hidden


def unit_norm(x: Hidden, *, eps: float) -> Hidden:
    """Scale each vector to unit root mean square: `rms_norm` without a gain.

        out = x / sqrt(mean(x**2) + eps)                 (mean over the last axis)

    Rounding: in float32 (float64 for float64), rounded once to `x.dtype`.
    Edges: those of `rms_norm`: a zero row gives zero, or NaN if eps is 0; NaN spoils its row.
    Varies by model: Gemma 4 alone has it, on each head's value and before its router.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4.
    """
    work = accumulator(x.dtype)
    wide = x.astype(work, copy=False)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        power = np.mean(wide * wide, axis=-1, keepdims=True, dtype=work)
        return rounded(wide / np.sqrt(power + work.type(eps)), x.dtype)
