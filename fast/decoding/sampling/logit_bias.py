"""Add a number to the logits of chosen tokens."""

from collections.abc import Iterable

import numpy as np

from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.errors import InputError


def logit_bias(logits: Array, bias: Iterable[tuple[int, float]]) -> Array:
    """Return the logits (V,) with `bias` added, all at once."""
    pairs = list(bias)
    ids, values = np.array([pair[0] for pair in pairs], np.int64), [pair[1] for pair in pairs]
    if ids.max(initial=0) >= len(logits):
        what = f"token id {ids.max()}, but should be 0..{len(logits) - 1}"
        raise InputError("sampling", what, "logit_bias")
    out = logits.astype(np.float64)
    out[ids] += values
    return out
