import numpy as np

from lockstep.fast.masks import Seen
from lockstep.fast.shapes import Scores

POLICIES = {"uniform": None, "zero": 0.0, "nan": np.nan}


def softmax(scores: Scores, mask: Seen, *, masked_row: str) -> Scores:
    """Turn each query's scores into weights that sum to one over the keys it may see.

    Differs from `reference.ops.softmax`: in place on one float32 copy.
    """
    if masked_row not in POLICIES:
        raise ValueError(f"masked_row={masked_row!r}, but should be one of {[*POLICIES]}")
    out = scores.astype(np.float32)
    if mask.kind != "all":
        np.copyto(out, -np.inf, where=~mask.mask)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        out -= out.max(axis=-1, keepdims=True, initial=-np.inf)
        np.exp(out, out=out)
        out /= out.sum(axis=-1, keepdims=True)
    if mask.blind:
        policy = 1 / max(out.shape[-1], 1) if masked_row == "uniform" else POLICIES[masked_row]
        np.copyto(out, policy, where=~mask.mask.any(axis=-1, keepdims=True))
    return out.astype(scores.dtype, copy=False)
