import numpy as np

from lockstep.reference.portions import portions
from lockstep.reference.precision import accumulator, rounded
from lockstep.reference.shapes import Array, Frequencies, Positions, Queries


def rope(x: Queries, positions: Positions, frequencies: Frequencies, *, factor: float) -> Queries:
    """Turn pairs of each head's dimensions by an angle that grows with the position.

        angle        = positions * frequencies                    (B, L, D/2)
        cos, sin     = factor * cos(angle), factor * sin(angle)
        out[j]       = x[j] * cos[j] - x[j + D/2] * sin[j]
        out[j + D/2] = x[j + D/2] * cos[j] + x[j] * sin[j]

    The two of a pair stand half a head apart ("rotate half"), as Hugging Face stores q and k.
    `frequencies` is (D/2,), or (B, D/2) where it differs from row to row.
    Rounding: angles, cosines and sines in float64, rounded to float32 (float64 for float64);
    products and sums in that; once to `x.dtype`. PyTorch rounds the angle to float32, and cosines
    and sines to `x.dtype`: at position 10,000 that is up to 1e-3 of a radian.
    Edges: with a factor of 1 position 0 gives every finite value back, though -0 may become 0;
    positions may repeat and need not be sorted; NaN and infinity spoil both of their pair.
    Varies by model: `factor` is 1 except in YaRN and LongRoPE; GPT-J and GGUF's Llama pair
    neighbours (2j, 2j+1) instead; Gemma 4's full layers leave a part of the head as it is.
    Source: Su et al. 2021, arXiv:2104.09864, eq. 34.
    """
    work = accumulator(x.dtype)
    length = x.shape[-2]
    positions = np.broadcast_to(positions, (len(positions), length))
    angle = positions[:, None, :, None] * frequencies[..., None, None, :]  # (B, 1, L, D/2)
    cos, sin = (factor * np.cos(angle)).astype(work), (factor * np.sin(angle)).astype(work)
    out = np.empty(x.shape, x.dtype)
    for some in portions(length, x.size // max(length, 1)):
        rows = np.s_[..., some, :]
        out[rows] = rounded(turned(x[rows].astype(work, copy=False), cos[rows], sin[rows]), x.dtype)
    return out


def turned(x: Queries, cos: Array, sin: Array) -> Queries:
    """Turn the heads of some tokens, in the dtype of the cosines and sines."""
    first, second = np.split(x, 2, axis=-1)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        both = (first * cos - second * sin, second * cos + first * sin)
    return np.concatenate(both, axis=-1)
