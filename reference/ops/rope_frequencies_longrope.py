import numpy as np

from lockstep.reference.ops.rope_frequencies import rope_frequencies
from lockstep.reference.shapes import RowFrequencies, RowIndex


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

        beyond[b]       = lengths[b] > original_max_position_embeddings
        divisor[b]      = long_factor if beyond[b] else short_factor
        frequency[b, j] = theta ** (-2 * j / dims) / divisor[b, j]

    The divisors were found by a search, and are stored in the config. `lengths` (B,) counts the
    tokens of each row so far.
    Rounding: all in float64.
    Edges: a text of exactly the original length is short. Keys in a cache keep the frequencies of
    the step that made them, so a text that outgrows the original length while it is decoded mixes
    both kinds, as in transformers.
    Varies by model: LongRoPE also multiplies cosines and sines, see `factor` of `rope`. mlx-lm
    takes `long_factor` for every length.
    Raises: ValueError unless there is a positive divisor for each pair.
    Source: Ding et al. 2024, arXiv:2402.13753; `_compute_longrope_parameters` of transformers.
    """
    short, long = np.array(short_factor, np.float64), np.array(long_factor, np.float64)
    if not (short.shape == long.shape == (dims // 2,) and (short > 0).all() and (long > 0).all()):
        found = f"{len(short)} and {len(long)} divisors"
        raise ValueError(f"{found}, but should be {dims // 2} of each, positive")
    beyond = lengths > original_max_position_embeddings
    return rope_frequencies(theta=theta, dims=dims) / np.where(beyond[:, None], long, short)
