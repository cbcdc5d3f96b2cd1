"""Which of several explanations that all pass the gate a port's numbers follow.

The gate asks of each alone whether it leaves more than noise. Where two of them differ by about a
noise, many numbers together still tell where on the way from one to the other the port is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.parity.explaining.deciding.verdict import Key, keys_of
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.hypothesis import Atom, rewritten
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph.graph import Piece

APART = 0.2  # noises that two must differ by: below, a rounding is no noise but follows the values
SURE = 50.0  # the same squared, over all numbers together
NEAR = 0.25  # of the way from one explanation to the other, and still at its end
FAR, NEARER = 1000.0, 0.35  # of a way so long, squared: no legal rounding leads beyond its half
WILD = 20.0  # noises off both: a token that a router sent elsewhere
CLEAN = 1.25  # noises: who leaves more beats none, as what is left may be a bug that none explains

Keys = frozenset[Key]
Pair = tuple[Keys, Keys]
Explained = tuple[Piece, list[Explanation]]


@dataclass(frozen=True)
class Way:
    """The way from one explanation to another, in noises squared, and how far along the port is."""

    along: float = 0.0
    size: float = 0.0
    count: int = 0

    def __add__(self, other: Way) -> Way:
        return Way(self.along + other.along, self.size + other.size, self.count + other.count)

    @property
    def long(self) -> bool:
        """Say whether the two are far enough apart to be told."""
        return self.size >= max(SURE, APART**2 * self.count)

    @property
    def nearer(self) -> float:
        """How much of the squared distance is left less at the other end."""
        return 2 * self.along - self.size

    @property
    def walked(self) -> bool:
        """Say whether the port is clearly at the other end."""
        near = NEARER if self.size >= FAR else NEAR
        return self.long and abs(self.along / self.size - 1) <= near


def winners(
    explained: Sequence[Explained], trial: Trial, common: Collection[Atom]
) -> list[Explained]:
    """Return what is left of each piece's explanations when those that are beaten are taken out.

    A piece decides for itself if it can, else all pieces that are between the same bugs together.
    What explains several pieces by what they have in `common` is beaten by nothing that explains
    one alone: that may be nearer because it reads a value of the port's that has the bug in it.
    """
    found = [ways(piece, some, trial, common) for piece, some in explained]
    pooled: dict[Pair, Way] = {}
    for here in found:
        for pair, way in here.items():
            rest = pair[0] - pair[1], pair[1] - pair[0]
            pooled[rest] = pooled.get(rest, Way()) + way
    return [
        (piece, unbeaten(some, here, pooled))
        for (piece, some), here in zip(explained, found, strict=True)
    ]


def unbeaten(
    some: Sequence[Explanation], here: dict[Pair, Way], pooled: dict[Pair, Way]
) -> list[Explanation]:
    beaten = {
        pair[0] for pair, way in here.items()
        if (way if way.long else pooled[pair[0] - pair[1], pair[1] - pair[0]]).walked
    }  # fmt: skip
    return [one for one in some if keys_of(one.atoms) not in beaten] or list(some)


def ways(
    piece: Piece, some: Sequence[Explanation], trial: Trial, common: Collection[Atom]
) -> dict[Pair, Way]:
    """Return the ways from a piece's explanations to those that may beat them; of the same bugs
    the best one counts.
    """
    best: dict[Keys, Explanation] = {}
    for one in sorted(some, key=lambda one: one.judgement.ratio):
        best.setdefault(keys_of(one.atoms), one)
    if len(best) < 2:
        return {}
    shared = {keys: not one.atoms.isdisjoint(common) for keys, one in best.items()}
    values = {keys: value(piece, one, trial) for keys, one in best.items()}
    port = trial.tokens(trial.port(piece.target), piece.target)
    noise = trial.relative_noise(piece, None)
    return {
        (one, other): way(port, values[one], values[other], noise)
        for one in values for other in values
        if one != other and best[other].judgement.ratio <= CLEAN and shared[one] <= shared[other]
    }  # fmt: skip


def value(piece: Piece, one: Explanation, trial: Trial) -> np.ndarray:
    with np.errstate(all="ignore"):  # a broken port may hold anything
        found = trial.centre(None).target(piece.target, rewritten(one.atoms, trial.graph))
    trial.count += 1
    return trial.tokens(found, piece.target)


@np.errstate(all="ignore")
def way(port: np.ndarray, one: np.ndarray, other: np.ndarray, noise: float) -> Way:
    """Walk from one value to another, each token (T, N) in its own noise."""
    unit = noise * np.sqrt(np.mean(np.square(one), axis=-1, keepdims=True))
    off, apart = (port - one) / unit, (other - one) / unit
    rows = (np.mean(part * part, axis=-1) for part in (off, off - apart))
    kept = np.minimum(*rows) <= WILD**2  # neither does a token with a number that is none
    kept &= np.isfinite(off).all(axis=-1) & np.isfinite(apart).all(axis=-1)
    off, apart = off[kept], apart[kept]
    return Way(float(np.sum(off * apart)), float(np.sum(apart * apart)), apart.size)
