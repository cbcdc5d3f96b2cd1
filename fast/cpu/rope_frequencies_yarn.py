import math

import numpy as np

from lockstep.fast.cpu.rope_frequencies import rope_frequencies
from lockstep.fast.shapes import Frequencies


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

    Differs from `reference.ops.rope_frequencies_yarn`: logarithms to the base theta.
    """
    if not (factor >= 1 and theta > 1 and beta_fast > 0 and beta_slow > 0):
        found = f"factor={factor}, theta={theta}, betas {beta_fast} and {beta_slow}"
        raise ValueError(f"{found}, but should be at least 1, above 1, above 0")
    turns = np.array([beta_fast, beta_slow])
    bounds = dims / 2 * np.log(original_max_position_embeddings / (2 * math.pi * turns))
    bounds /= math.log(theta)
    if truncate:
        bounds = np.floor(bounds[0]), np.ceil(bounds[1])
    first, last = max(bounds[0], 0.0), min(bounds[1], dims - 1.0)
    width = 0.001 if first == last else last - first
    plain = rope_frequencies(theta=theta, dims=dims)
    ramp = ((np.arange(dims // 2) - first) / width).clip(0, 1)
    return plain + ramp * (plain / factor - plain)
