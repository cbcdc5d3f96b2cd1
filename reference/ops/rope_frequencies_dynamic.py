import numpy as np

from lockstep.reference.shapes import RowFrequencies, RowIndex


def rope_frequencies_dynamic(
    lengths: RowIndex,
    *,
    theta: float,
    dims: int,
    factor: float,
    original_max_position_embeddings: int,
) -> RowFrequencies:
    """Return frequencies that slow down as the text grows: (B,) -> (B, D/2), "dynamic NTK".

        original        = original_max_position_embeddings
        length[b]       = max(lengths[b], original)
        growth[b]       = factor * length[b] / original - (factor - 1)
        frequency[b, j] = (theta * growth[b] ** (dims / (dims - 2))) ** (-2 * j / dims)

    `lengths` (B,) counts the tokens of each row so far. The slowest pair is divided by `growth`,
    the fastest one is left alone.
    Rounding: all in float64.
    Edges: up to `original` tokens these are the plain frequencies. Keys in a cache keep the
    frequencies of the step that made them, so beyond `original` a cached run is another function
    than an uncached one.
    Varies by model: `original` is `max_position_embeddings` of the config.
    Raises: ValueError if `dims` is odd or below 4, or `factor` below 1, or `theta` not positive.
    Source: bloc97 and emozilla 2023, as in `_compute_dynamic_ntk_parameters` of transformers.
    """
    if dims < 4 or dims % 2 or not (theta > 0 and factor >= 1):
        found = f"dims={dims}, theta={theta}, factor={factor}"
        raise ValueError(f"{found}, but should be even and at least 4, above 0, at least 1")
    length = np.maximum(lengths, original_max_position_embeddings)
    growth = factor * length / original_max_position_embeddings - (factor - 1)
    base = theta * growth ** (dims / (dims - 2))
    return base[:, None] ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
