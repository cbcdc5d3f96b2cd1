"""Take the likeliest token."""

import numpy as np

from lockstep.reference.decoding.sampling.candidates import checked
from lockstep.reference.shapes import Array


def greedy(logits: Array) -> int:
    """Return the id of the largest logit, the lowest of equals.

    Raises: InputError if a logit is NaN or +inf, or none is above -inf.
    """
    return int(np.argmax(checked(logits)))
