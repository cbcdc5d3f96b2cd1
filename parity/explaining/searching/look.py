"""A rough look at a hypothesis: how far it moves a value, and how far the port is from there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lockstep.parity.judging.judge import over as quotient

FAR = 1e300  # how far off a value is that is not a number, or not of the right shape
ALIKE = 1e-3  # of their sums, that two hypotheses may differ by and still be like each other
FIRST = 4  # tokens, of which one at least is right, whatever a router turned
PARALLEL = 4e-12  # squared: how long the sum or difference of two arrows is that lie on one line
MOST_UNSURE = 0.5  # of the tokens, that are left out; if more are unsure, choices are looked for
TRIMMED = 0.25  # of the tokens, the farthest, are left out behind a router: it may have turned


@dataclass(frozen=True)
class Look:
    """Sums of squares token by token, (T,), so that every stretch of tokens can be asked about.

    `port` is how far the port is from the hypothesis, and `moved` how far that is from what is
    right; `size`, `wrong` and `right` are of these three themselves. `cross` is the product of the
    port's distance and the hypothesis, `along` and `aside` are the port's with it and with what is
    right, `shared` is that of these two.
    `careful` says that every token counts; behind a router that rounding may turn, some do not. Of
    `made` tokens the port has no numbers, just as the hypothesis makes it.
    """

    port: np.ndarray
    wrong: np.ndarray
    cross: np.ndarray
    moved: np.ndarray
    right: np.ndarray
    size: np.ndarray
    along: np.ndarray
    aside: np.ndarray
    shared: np.ndarray
    noise: float
    careful: bool
    made: int = 0

    @classmethod
    @np.errstate(all="ignore")  # a broken port may hold anything
    def of(
        cls,
        port: np.ndarray,
        wrong: np.ndarray,
        right: np.ndarray,
        noise: float,
        *,
        careful: bool,
        made: int = 0,
    ) -> Look:
        """Look at values of each token in a row, (T, N)."""

        def sums(left: np.ndarray, other: np.ndarray) -> np.ndarray:
            return np.einsum("tn,tn->t", left, other)

        off, moved = port - wrong, wrong - right
        return cls(sums(off, off), sums(wrong, wrong), sums(off, wrong), sums(moved, moved),
                   sums(right, right), sums(port, port), sums(port, wrong), sums(port, right),
                   sums(wrong, right), noise, careful, made)  # fmt: skip

    def raw(self, first: int, last: int | None) -> float:
        """Return the port's distance from the hypothesis over the noise, in a stretch of tokens."""
        return self.ratio(self.port[first:last], self.wrong[first:last])

    @np.errstate(all="ignore")  # what a broken port dumps may overflow, or be all zero
    def scaled(self, first: int, last: int | None) -> float:
        """Return the same after the best single factor for the hypothesis, over the port's size.

        Over its own, a bug that makes huge numbers would be near to anything.
        """
        size, wrong, along = (part[first:last] for part in (self.size, self.wrong, self.along))
        gain = along.sum() / wrong.sum()
        return self.ratio(size - 2 * gain * along + gain * gain * wrong, size)

    @np.errstate(all="ignore")
    def mixed(self, first: int, last: int | None) -> float:
        """Return the same after the best mixture of the hypothesis and the right value.

        A bug among others often moves a value in its own direction, but not as far. Both are
        scaled to the length 1: then their sum and their difference are at right angles.
        """
        parts = (self.size, self.wrong, self.right, self.along, self.aside, self.shared)
        size, wrong, right, along, aside, shared = (part[first:last].sum() for part in parts)
        one, other = along / math.sqrt(wrong), aside / math.sqrt(right)
        cosine = shared / math.sqrt(wrong) / math.sqrt(right)
        if not math.isfinite(cosine) or not math.isfinite(one + other):
            return FAR
        both = (((one + sign * other) ** 2, 2 * (1 + sign * cosine)) for sign in (1, -1))
        told = sum(square / length for square, length in both if length > PARALLEL)
        return over(size - told, size, self.noise)

    @np.errstate(all="ignore")
    def beginning(self) -> float:
        """Return the same of the best of the first tokens: a turned router spoils few of them."""
        pairs = zip(self.port[:FIRST], self.wrong[:FIRST], strict=True)
        return min((over(error, size, self.noise) for error, size in pairs), default=0.0)

    @np.errstate(all="ignore")
    def fingerprint(self, first: int, last: int | None) -> tuple[float, ...]:
        """Return what two hypotheses share that do the same to a stretch of tokens."""
        parts = (self.port, self.wrong, self.cross, self.moved)
        return (*(float(f"{part[first:last].sum():.9g}") for part in parts), float(self.made))

    def resembles(self, other: Look) -> bool:
        """Say whether another hypothesis does the same to all tokens, but for a few of them."""
        mine, yours = (np.array(look.fingerprint(0, None)) for look in (self, other))
        return bool(np.allclose(mine, yours, rtol=ALIKE, atol=0.0))

    @np.errstate(all="ignore")
    def effect(self, first: int, last: int | None) -> float:
        """Return how far the hypothesis moves the right value, over the noise."""
        if self.made:
            return FAR
        return over(self.moved[first:last].sum(), self.right[first:last].sum(), self.noise)

    def usual_effect(self) -> float:
        """Return the same of all tokens; behind a router, which may have turned, of the nearer."""
        return FAR if self.made else self.ratio(self.moved, self.right)

    @np.errstate(all="ignore")
    def ratio(self, error: np.ndarray, size: np.ndarray) -> float:
        if self.careful or len(error) <= 3:
            return over(error.sum(), size.sum(), self.noise)
        share = quotient(error, size)  # nothing of nothing, where none is a number
        if not np.isfinite(share).all():
            return FAR
        kept = share <= np.quantile(share, 1 - TRIMMED)
        return over(error[kept].sum(), size[kept].sum(), self.noise)


def nowhere(tokens: int) -> Look:
    """Return the look of something of another shape: as far as can be."""
    far, one, none = np.full(tokens, np.inf), np.ones(tokens), np.zeros(tokens)
    return Look(far, one, none, far, one, one, none, none, none, 1.0, careful=True)


def over(error: float, size: float, noise: float) -> float:
    """Return the root of error over size, in noises; what is not a number is far."""
    if not size:
        return FAR if error else 0.0
    found = math.sqrt(max(float(error), 0.0) / float(size)) / noise if noise else FAR
    return found if math.isfinite(found) else FAR
