"""Take the likeliest token."""

import numpy as np

from lockstep.fast.shapes import Array
from lockstep.reference.checkpoint.errors import InputError


def greedy(logits: Array) -> int:
    """Return the id of the largest logit, the lowest of equals."""
    token = int(logits.argmax())
    if not np.isfinite(logits[token]):  # NaN and +inf win an argmax; -inf wins where all are
        raise InputError("logits", f"logit {token} is {logits[token]}, but should be finite")
    return token
