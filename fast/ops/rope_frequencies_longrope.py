import numpy as np

from lockstep.fast.ops.rope_frequencies import rope_frequencies
from lockstep.fast.shapes import RowFrequencies, RowIndex


def rope_frequencies_longrope(
    lengths: RowIndex,
    *,
    theta: float,
    dims: int,
    short_factor: tuple[float, ...],
    long_factor: tuple[float, ...],
    original_max_position_embeddings: int,
) -> RowFrequencies:
    """Return each pair's frequency divided by a number of its own: (B,) -> (B, D/2), LongRoPE.

    Differs from `reference.ops.rope_frequencies_longrope`: both kinds are made, each row picks one.
    """
    factors = (short_factor, long_factor)
    if any(len(one) != dims // 2 or min(one) <= 0 for one in factors):
        found = f"{len(short_factor)} and {len(long_factor)} divisors"
        raise ValueError(f"{found}, but should be {dims // 2} of each, positive")
    both = rope_frequencies(theta=theta, dims=dims) / np.array(factors)
    return both[(lengths > original_max_position_embeddings).astype(int)]
