import numpy as np

from lockstep.fast import kernels
from lockstep.fast.shapes import Frequencies, Positions, Queries


def rope(x: Queries, positions: Positions, frequencies: Frequencies, *, factor: float) -> Queries:
    """Turn pairs of each head's dimensions by an angle that grows with the position.

    Differs from `reference.ops.rope`: cosines and sines are made once for all layers of a step;
    without Numba the pair is one complex number, turned by one product.
    """
    if kernels.available():
        read = x.astype(np.float32) if x.dtype == np.float16 else x
        turned = kernels.module("turn").turned
        found = turned(read, positions, frequencies, factor=factor)
        if found is not None and x.dtype == found.dtype:
            return found
        if found is not None:
            with np.errstate(over="ignore"):
                return found.astype(x.dtype, copy=False)
    angle = positions[:, None, :, None] * frequencies[..., None, None, :]  # (B, 1, L, D/2)
    turn = (factor * np.exp(1j * angle)).astype(np.complex64)
    half = x.shape[-1] // 2
    wide = x.astype(np.float32, copy=False)
    pairs = np.empty((*x.shape[:-1], half), np.complex64)
    pairs.real, pairs.imag = wide[..., :half], wide[..., half:]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        pairs *= turn
        return np.concatenate([pairs.real, pairs.imag], axis=-1).astype(x.dtype, copy=False)
