import numpy as np

from lockstep.reference.ops.rope_frequencies import rope_frequencies
from lockstep.reference.shapes import Frequencies


def rope_frequencies_proportional(
    *, theta: float, dims: int, partial_rotary_factor: float
) -> Frequencies:
    """Return the frequencies of heads of which only the fastest pairs turn.

        turned       = floor(partial_rotary_factor * dims / 2)
        frequency[j] = theta ** (-2 * j / dims)   for j < turned, else 0

    The exponent divides by all of `dims`, and a pair still stands half a head apart: this is not
    the rotation of a narrower head.
    Rounding: all in float64.
    Edges: a factor of 1 changes nothing; with 0 nothing turns.
    Varies by model: Gemma 4's full layers turn a quarter of their pairs, by theta 1,000,000.
    Raises: ValueError if the factor is not from 0 to 1, and for what `rope_frequencies` refuses.
    Source: `_compute_proportional_rope_parameters` of transformers.
    """
    if not 0 <= partial_rotary_factor <= 1:
        raise ValueError(f"partial_rotary_factor={partial_rotary_factor}, but should be 0 to 1")
    turned = int(partial_rotary_factor * dims // 2)
    return np.where(np.arange(dims // 2) < turned, rope_frequencies(theta=theta, dims=dims), 0.0)
