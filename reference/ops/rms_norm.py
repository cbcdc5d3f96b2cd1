import numpy as np

from lockstep.reference.portions import row_by_row
from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Gain, Hidden


def rms_norm(x: Hidden, gain: Gain, *, eps: float) -> Hidden:
    """Scale each vector to unit root mean square, then multiply by a learned gain.

        out = x / sqrt(mean(x**2) + eps) * gain          (mean over the last axis)

    Rounding: twice. The vector is normalised in float32 (float64 for float64) and rounded to
    `x.dtype`, then the product with the gain is rounded; only the second shows in float32.
    Edges: a zero row gives zero, or NaN if eps is 0; a row whose squares overflow float32
    (|x| above 1.8e19) gives zero, as in every engine that squares in float32; an infinite value
    becomes NaN; NaN spoils its row.
    Varies by model: `eps`; over which axis (Qwen3 also normalises each head's query and key);
    Gemma 1 to 3 store `gain - 1`; GPT-2 uses `layer_norm` instead.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4.
    """
    return row_by_row(lambda rows: normed(rows, gain, eps), x)


def normed(x: Hidden, gain: Gain, eps: float) -> Hidden:
    """Normalise some rows and multiply them by the gain."""
    work = accumulator(x.dtype)
    wide = x.astype(work, copy=False)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        power = np.mean(wide * wide, axis=-1, keepdims=True, dtype=work)
        out = rounded(wide / np.sqrt(power + work.type(eps)), x.dtype)
        return out * rounded(gain, x.dtype)
