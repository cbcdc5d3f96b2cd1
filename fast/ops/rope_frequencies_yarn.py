import math

import numpy as np

from lockstep.fast.ops.rope_frequencies import rope_frequencies
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

    Differs from `reference.ops.rope_frequencies_yarn`: written as one multiplier, on the host.
    """
    if not (factor >= 1 and theta > 1 and beta_fast > 0 and beta_slow > 0):
        found = f"factor={factor}, theta={theta}, betas {beta_fast} and {beta_slow}"
        raise ValueError(f"{found}, but should be at least 1, above 1, above 0")
    scale = dims / (2 * math.log(theta))
    reach = math.log(original_max_position_embeddings / (2 * math.pi))
    low, high = scale * (reach - math.log(beta_fast)), scale * (reach - math.log(beta_slow))
    low, high = (math.floor(low), math.ceil(high)) if truncate else (low, high)
    low, high = max(low, 0), min(high, dims - 1)
    slope = 1 / (high - low or 0.001)
    ramp = np.clip((np.arange(dims // 2) - low) * slope, 0, 1)
    return rope_frequencies(theta=theta, dims=dims) * (1 - ramp * (1 - 1 / factor))
