import numpy as np

from lockstep.reference.ops.rope_frequencies import rope_frequencies
from lockstep.reference.shapes import Frequencies


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

        plain[j]     = theta ** (-2 * j / dims)
        turns[j]     = original_max_position_embeddings * plain[j] / (2 * pi)
        low, high    = low_freq_factor, high_freq_factor
        kept[j]      = clip((turns[j] - low) / (high - low), 0, 1)
        frequency[j] = kept[j] * plain[j] + (1 - kept[j]) * plain[j] / factor

    `turns` is how often a pair goes round within the length that the model was first trained on: a
    pair that hardly goes round once cannot tell far positions apart, and is slowed.
    Rounding: all in float64.
    Edges: at both ends of the blend the two formulas meet.
    Varies by model: `factor` is 8 in Llama 3.1 and 32 in 3.2; the others are 1, 4 and 8192 in both.
    Raises: ValueError unless `high_freq_factor` is above `low_freq_factor` and `factor` at least 1.
    Source: `apply_scaling` of meta-llama/llama-models; the same in transformers.
    """
    if not (factor >= 1 and high_freq_factor > low_freq_factor):
        found = f"factor={factor}, bounds {low_freq_factor} and {high_freq_factor}"
        raise ValueError(f"{found}, but should be at least 1, and rising")
    plain = rope_frequencies(theta=theta, dims=dims)
    turns = original_max_position_embeddings * plain / (2 * np.pi)
    kept = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    return kept * plain + (1 - kept) * plain / factor
