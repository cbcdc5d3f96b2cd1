"""The tokens that can still be chosen, and how likely they are among each other."""

from typing import NamedTuple, Self

import numpy as np

from lockstep.fast.decoding.sampling.greedy import greedy
from lockstep.fast.shapes import Array


class Candidates(NamedTuple):
    """Token ids (N,) and their logits (N,) in float64, in an order that a stage may change."""

    ids: Array
    logits: Array

    def at(self, places: Array | slice) -> Self:
        """Return those at `places`, in the order of `places`; or those where it is true."""
        return type(self)(self.ids[places], self.logits[places])

    def best_first(self) -> Self:
        """Return all of them, the largest logit first, the lowest id of equals first.

        Where the ids are in order a stable sort does both, and it is the faster one.
        """
        if (self.ids[1:] > self.ids[:-1]).all():
            return self.at(np.argsort(-self.logits, kind="stable"))
        return self.at(np.lexsort((self.ids, -self.logits)))


def candidates(logits: Array) -> Candidates:
    """Return all tokens above -inf, in the order of their ids."""
    greedy(logits)  # for its errors
    wide = logits.astype(np.float64)
    if wide.min() > -np.inf:
        return Candidates(np.arange(len(wide)), wide)
    ids = np.flatnonzero(wide > -np.inf)
    return Candidates(ids, wide[ids])


def weights(left: Candidates) -> Array:
    """Return each candidate's probability over the best one's, (N,)."""
    return np.exp(left.logits - left.logits.max())


def shares(left: Candidates) -> Array:
    """Return each candidate's probability among the candidates, (N,)."""
    powers = weights(left)
    return powers / powers.sum()
