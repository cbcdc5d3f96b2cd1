import numpy as np

from lockstep.fast.shapes import RowFrequencies, RowIndex


def rope_frequencies_dynamic(
    lengths: RowIndex,
    *,
    theta: float,
    dims: int,
    factor: float,
    original_max_position_embeddings: int,
) -> RowFrequencies:
    """Return frequencies that slow down as the text grows: (B,) -> (B, D/2), "dynamic NTK".

    Differs from `reference.ops.rope_frequencies_dynamic`: an exponential, on the host.
    """
    if dims < 4 or dims % 2 or not (theta > 0 and factor >= 1):
        found = f"dims={dims}, theta={theta}, factor={factor}"
        raise ValueError(f"{found}, but should be even and at least 4, above 0, at least 1")
    excess = np.maximum(lengths / original_max_position_embeddings - 1, 0)
    logs = np.log(theta) + np.log1p(factor * excess) * dims / (dims - 2)
    return np.exp(np.outer(logs, np.arange(dims // 2) * (-2 / dims)))
