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

    Differs from `reference.ops.rope_frequencies_dynamic`: each pair is slowed by a power of its
    own.
    """
    if dims < 4 or dims % 2 or not (theta > 0 and factor >= 1):
        found = f"dims={dims}, theta={theta}, factor={factor}"
        raise ValueError(f"{found}, but should be even and at least 4, above 0, at least 1")
    excess = np.maximum(lengths - original_max_position_embeddings, 0)
    growth = 1 + factor * excess / original_max_position_embeddings
    pairs = np.arange(dims // 2)
    plain = np.exp2(pairs * (-2 * np.log2(theta) / dims))
    return plain * growth[:, None] ** (pairs * (-2 / (dims - 2)))
