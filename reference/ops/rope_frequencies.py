import numpy as np

from lockstep.reference.shapes import Frequencies


def rope_frequencies(*, theta: float, dims: int) -> Frequencies:
    """Return how far each pair of a head's dimensions turns from one position to the next.

        frequency[j] = theta ** (-2 * j / dims)          j = 0 .. dims/2 - 1, in radians

    Rounding: none to speak of, all in float64. Engines that compute these in float32 are up to
    1e-6 off, relative; at position p that is an angle error of p * frequency * 1e-6 at most.
    Edges: frequency[0] is 1 exactly. An odd `dims` has no last partner and is an error.
    Varies by model: `theta` (Llama 10,000, Qwen3 1,000,000), `dims` where only a part is rotated.
    Raises: ValueError if `dims` is odd or not positive, or `theta` not positive and finite.
    Source: Su et al. 2021, arXiv:2104.09864, section 3.2.2.
    """
    if dims < 2 or dims % 2 or not 0 < theta < np.inf:
        raise ValueError(f"dims={dims}, theta={theta}, but should be positive, and dims even")
    return theta ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
