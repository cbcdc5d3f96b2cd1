"""Make earlier tokens less likely: the repetition, the frequency and the presence penalty."""

from collections.abc import Sequence

import numpy as np

from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.errors import InputError


def penalties(
    logits: Array,
    seen: Sequence[int],
    *,
    repetition: float,
    frequency: float,
    presence: float,
    window: int | None,
    uncounted: int,
) -> Array:
    """Return the logits (V,) with those of the last `window` tokens of `seen` lowered, at once."""
    start = 0 if window is None else max(len(seen) - window, 0)
    ids, places = np.unique(np.array(seen[start:], np.int64), return_inverse=True)
    counts = np.bincount(places[max(uncounted - start, 0) :], minlength=len(ids))
    wrong = ids[(ids < 0) | (ids >= len(logits))]
    if len(wrong):
        what = f"token id {wrong[0]}, but should be 0..{len(logits) - 1}"
        raise InputError("sampling", what, "earlier tokens")
    out = logits.astype(np.float64)
    values = out[ids]
    values = np.where(values > 0, values / repetition, values * repetition)
    out[ids] = np.where(counts > 0, values - presence - frequency * counts, values)
    return out
