import numpy as np

from lockstep.fast.ops.rope_frequencies import rope_frequencies
from lockstep.fast.shapes import Frequencies


def rope_frequencies_llama3(
    *,
    theta: float,
    dims: int,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
) -> Frequencies:
    """Return frequencies of which only the slow ones are divided by `factor`: Llama 3.1.

    Differs from `reference.ops.rope_frequencies_llama3`: three cases, on the host.
    """
    if not (factor >= 1 and high_freq_factor > low_freq_factor):
        found = f"factor={factor}, bounds {low_freq_factor} and {high_freq_factor}"
        raise ValueError(f"{found}, but should be at least 1, and rising")
    plain = rope_frequencies(theta=theta, dims=dims)
    waves = original_max_position_embeddings * plain / (2 * np.pi)
    kept = (waves - low_freq_factor) / (high_freq_factor - low_freq_factor)
    blended = plain * ((1 - kept) / factor + kept)
    slowed = np.where(waves < low_freq_factor, plain / factor, blended)
    return np.where(waves > high_freq_factor, plain, slowed)
