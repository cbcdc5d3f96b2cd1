import numpy as np

from lockstep.fast.shapes import Frequencies


def rope_frequencies(*, theta: float, dims: int) -> Frequencies:
    """Return how far each pair of dimensions turns from one position to the next, in radians.

    Differs from `reference.ops.rope_frequencies`: written as an exponential.
    """
    if dims < 2 or dims % 2 or not 0 < theta < np.inf:
        raise ValueError(f"dims={dims}, theta={theta}, but should be positive, and dims even")
    return np.exp2(np.arange(dims // 2) * (-2 * np.log2(theta) / dims))
