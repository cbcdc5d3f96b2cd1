"""A module for `lockstep conformance --backend`: two operations, one of which has a bug.

Functions stand under the operations' names and take NumPy arrays, in the order of the reference.
"""

import numpy as np


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def rms_norm(x: np.ndarray, gain: np.ndarray, *, eps: float) -> np.ndarray:
    """The bug: `eps` is added to the root, where it belongs to the mean below it."""
    root = np.sqrt(np.mean(x * x, axis=-1, keepdims=True))
    return x / (root + x.dtype.type(eps)) * gain
