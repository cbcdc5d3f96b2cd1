import math

import numpy as np

from lockstep.reference.ops.rope_frequencies import rope_frequencies
from lockstep.reference.shapes import Frequencies


def rope_frequencies_yarn(
    *,
    theta: float,
    dims: int,
    factor: float,
    beta_fast: float,
    beta_slow: float,
    original_max_position_embeddings: int,
    truncate: bool,
) -> Frequencies:
    """Return frequencies that pass from plain to divided by `factor` along the head: YaRN.

        length       = original_max_position_embeddings / (2 * pi * turns)
        pair(turns)  = dims * log(length) / (2 * log(theta))
        low, high    = pair(beta_fast), pair(beta_slow)           rounded outwards if `truncate`
        low, high    = max(low, 0), min(high, dims - 1)           high + 0.001 if they are equal
        ramp[j]      = clip((j - low) / (high - low), 0, 1)
        frequency[j] = (1 - ramp[j]) * plain[j] + ramp[j] * plain[j] / factor

    `pair(turns)` is the pair, as a fraction, that goes round that often within the original length;
    `plain` is `rope_frequencies`.
    Rounding: all in float64; the two bounds are whole numbers if `truncate`.
    Edges: the bound `dims - 1` is beyond the last pair, dims/2 - 1: so the original code has it.
    Varies by model: YaRN also multiplies cosines and sines, see `factor` of `rope`; MLX always
    truncates.
    Raises: ValueError if `factor` is below 1, `theta` not above 1, or a beta not positive.
    Source: Peng et al. 2023, arXiv:2309.00071, section 3.2; `_compute_yarn_parameters` of
    transformers.
    """
    if not (factor >= 1 and theta > 1 and beta_fast > 0 and beta_slow > 0):
        found = f"factor={factor}, theta={theta}, betas {beta_fast} and {beta_slow}"
        raise ValueError(f"{found}, but should be at least 1, above 1, above 0")

    def pair(turns: float) -> float:
        length = original_max_position_embeddings / (2 * math.pi * turns)
        return dims * math.log(length) / (2 * math.log(theta))

    low, high = pair(beta_fast), pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    width = high - low if high != low else 0.001
    ramp = np.clip((np.arange(dims // 2) - low) / width, 0, 1)
    plain = rope_frequencies(theta=theta, dims=dims)
    return (1 - ramp) * plain + ramp * plain / factor
