import numpy as np

from lockstep.fast.cpu.rope_frequencies import rope_frequencies
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

    Differs from `reference.ops.rope_frequencies_llama3`: the blend is interpolated in a table.
    """
    if not (factor >= 1 and high_freq_factor > low_freq_factor):
        found = f"factor={factor}, bounds {low_freq_factor} and {high_freq_factor}"
        raise ValueError(f"{found}, but should be at least 1, and rising")
    plain = rope_frequencies(theta=theta, dims=dims)
    turns = plain * (original_max_position_embeddings / (2 * np.pi))
    return plain * np.interp(turns, (low_freq_factor, high_freq_factor), (1 / factor, 1))
