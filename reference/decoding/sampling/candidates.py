"""The tokens that can still be chosen, and how likely they are among each other."""

from typing import NamedTuple, Self

import numpy as np

from lockstep.reference.checkpoint.errors import InputError
from lockstep.reference.shapes import Array


class Candidates(NamedTuple):
    """Token ids (N,) and their logits (N,) in float64, in an order that a stage may change."""

    ids: Array
    logits: Array

    def at(self, places: Array | slice) -> Self:
        """Return those at `places`, in the order of `places`; or those where it is true."""
        return type(self)(self.ids[places], self.logits[places])

    def best_first(self) -> Self:
        """Return all of them, the largest logit first, the lowest id of equals first."""
        return self.at(np.lexsort((self.ids, -self.logits)))


def candidates(logits: Array) -> Candidates:
    """Return all tokens above -inf, in the order of their ids.

    Raises: InputError if a logit is NaN or +inf, or none is above -inf.
    """
    wide = checked(logits)
    ids = np.flatnonzero(wide > -np.inf)
    return Candidates(ids, wide[ids])


def weights(left: Candidates) -> Array:
    """Return each candidate's probability over the best one's, (N,): equals have equal ones.

    Sums of them are whole numbers where sums of equal probabilities are rounded.
    """
    return np.exp(left.logits - left.logits.max())


def shares(left: Candidates) -> Array:
    """Return each candidate's probability among the candidates, (N,)."""
    powers = weights(left)
    return powers / powers.sum()


def checked(logits: Array) -> Array:
    """Return the logits in float64, if one can choose among them."""
    wide = logits.astype(np.float64)
    if np.isnan(wide).any() or np.isposinf(wide).any():
        bad = int(np.flatnonzero(~(wide < np.inf))[0])
        raise InputError("logits", f"logit {bad} is {wide[bad]}, but should be finite")
    if not np.isfinite(wide).any():
        raise InputError("logits", "no logit is above -inf: there is nothing to choose from")
    return wide
