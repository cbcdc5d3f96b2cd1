"""Numbered tensors of a port, held to what the reference made in its first layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lockstep.parity.naming.align import MOVES, move_between
from lockstep.parity.naming.families import Family, Shape, plain
from lockstep.parity.naming.first_layer import FirstLayer
from lockstep.parity.naming.roles import is_usual_for_streams

SAME = 0.05  # of a value's size: more than half precision and packed activations make in a layer
ALONE = 4  # how many times as far all others must be
NEAR = 0.3  # the cosine with what leaves layer 1 that a bug in it must leave
REAL = ("float16", "bfloat16", "float32", "float64")  # what an activation may be
Read = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Seen:
    """One value of a port beside those of the reference that have its shape.

    `far` has how far each is, over its size; `off` the same when each row may have a factor of its
    own, `alike` the cosine. `whole` is `off` with one factor for all rows, of what enters layers.
    """

    far: Mapping[str, float]
    off: Mapping[str, float]
    alike: Mapping[str, float]
    whole: float = np.inf

    @property
    def same(self) -> str | None:
        """The one that it is, None if it is none or may be two."""
        if not self.far:
            return None
        best, *others = sorted(self.far, key=self.far.__getitem__)
        alone = all(self.far[other] > ALONE * self.far[best] for other in others)
        return best if self.far[best] < SAME and alone else None

    def is_best(self, tap: str) -> bool:
        """Say whether it is a tap, and no other is nearer."""
        return self.far.get(tap, np.inf) < SAME and min(self.far, key=self.far.__getitem__) == tap

    def is_likest(self, tap: str) -> bool:
        """Say whether it may be a tap with a bug in it: like no other as much, and equal to none.

        What is one of them but for a factor a row, as normed streams are, is another thing.
        """
        if self.alike.get(tap, 0) < NEAR or min(self.off.values()) < SAME:
            return False
        return max(self.alike, key=self.alike.__getitem__) == tap


@dataclass(frozen=True)
class Streams:
    """A family of theirs, held to the reference's first layer."""

    family: Family
    known: Mapping[str, Shape]
    read: Read
    glued: Mapping[str, str]  # a name as it is spelled in the family -> as it is
    first: FirstLayer

    def taps(self) -> tuple[dict[str, str], str]:
        """Return the tap of each name, and why; none if nothing is known."""
        values, seen = self.first, self.seen(self.begin)
        if seen.same == values.before or seen.whole < SAME:
            told = "by the values that enter layer 0"
            return self.placed(values.behind, [values.before]), told
        if seen.same is not None and seen.same.startswith(values.behind):
            return self.placed(seen.same), "by the values of layer 0"
        return {}, ""

    def beside(self) -> tuple[dict[str, str], str]:
        """Return the tap of a name without a number, if it is one before the layers."""
        taps, stem = self.first.taps, self.first.stem
        before = {tap: value for tap, value in taps.items() if not tap.startswith(stem)}
        # Of many names few are near to these, and the rest need no look at all the others.
        if self.seen(0, before).same is None or (same := self.seen(0).same) not in before:
            return {}, ""
        return {self.glued[self.family.names[0]]: same}, "by its values"

    @property
    def begin(self) -> int:
        return min(self.family.shapes)

    @property
    def are_usual(self) -> bool:
        """Whether ports call streams so, there are enough, and the name says not which they are."""
        family, first = self.family, self.first
        usual = family.layered and is_usual_for_streams(plain(family.stem), family.words)
        own = not family.words and first.stem.endswith(family.stem)  # as `h.` of `transformer.h.`
        return usual and not own and len(family.shapes) in (first.layers, first.layers + 1)

    def placed(self, like: str, before: Sequence[str] = ()) -> dict[str, str]:
        """Return the taps of all, where there are as many as layers and all fit; else of none.

        `before` is what comes before those of layer 0; `like` the tap of layer 0 that they are.
        """
        wanted = self.wanted(like.removeprefix(self.first.behind), before)
        taps = dict(enumerate(wanted, self.begin))
        if not self.may_be(wanted):
            return {}
        next_ones = [*taps.items()][1 : 2 + len(before)]  # as far as layer 1
        if not all(self.goes_on(number, tap) for number, tap in next_ones):
            return {}
        if self.leaves_one_out(taps):
            return {}
        return self.named(wanted)

    def may_be(self, wanted: Sequence[str]) -> bool:
        """Say whether they are as many as taps, numbered without a gap, and of their shapes."""
        taps = dict(enumerate(wanted, self.begin))
        return taps.keys() == self.family.shapes.keys() and all(map(self.fits, taps, wanted))

    def named(self, wanted: Sequence[str]) -> dict[str, str]:
        """Return the tap of each name in the dump, given the taps in their order."""
        numbered = enumerate(wanted, self.begin)
        return {self.glued[self.family.names[number]]: tap for number, tap in numbered}

    def wanted(self, part: str, before: Sequence[str]) -> list[str]:
        """Return the taps in their order, none if there may not be so many.

        The norm stands where the last stream would, or behind all of them.
        """
        layers, count = self.first.layers, len(self.family.shapes)
        if (last := self.value(max(self.family.shapes))) is None:
            return []
        normed = not part and self.first.is_normed(last)
        least, most = layers + (normed and bool(before)), layers + (normed or bool(before))
        if not least <= count <= most:
            return []
        all_of_them = [*before, *(self.first.layer(n) + part for n in range(layers))]
        return [*all_of_them[: count - normed], *[self.first.norm] * normed]

    def leaves_one_out(self, taps: Mapping[int, str]) -> bool:
        """Say whether one of some streams is that behind the layer after its own.

        Where the last layer has none they may be what enters layers, or an earlier one is missing.
        """
        numbers = {tap: number for number, tap in taps.items()}
        if self.first.behind not in numbers or self.first.layer(self.first.layers - 1) in numbers:
            return False
        for (tap, truth), (behind, later) in pairwise(self.first.streams()):
            there = {tap: truth, behind: later}
            if tap in numbers and self.seen(numbers[tap], there).same == behind:
                return True
        return False

    def goes_on(self, number: int, tap: str) -> bool:
        """Say whether a later one is the tap that is wanted, or may be with a bug."""
        seen = self.seen(number)
        if seen.is_best(tap):
            return True
        if seen.same is not None:
            return False
        streams = self.first.layer(0), self.first.layer(1)
        return tap == self.first.norm or (tap in streams and seen.is_likest(tap))

    def fits(self, number: int, tap: str) -> bool:
        shape = self.family.shapes[number]
        return tap in self.known and move_between(shape, self.known[tap]) is not None

    @np.errstate(all="ignore")
    def value(self, number: int) -> np.ndarray | None:
        """Read one of theirs as float32; None if it is no activation, by its dtype."""
        return real(self.read(self.glued[self.family.names[number]]))

    def seen(self, number: int, taps: Mapping[str, np.ndarray] | None = None) -> Seen:
        """Hold one of theirs to `taps`, or all that the reference made in its first layers."""
        shape = self.family.shapes[number]
        fitting = [(tap, truth, move) for tap, truth in (taps or self.first.taps).items()
                   if (move := move_between(shape, truth.shape)) is not None]  # fmt: skip
        if not fitting or (x := self.value(number)) is None:
            return Seen({}, {}, {})
        return compared({tap: (MOVES[move](x, truth.shape), truth) for tap, truth, move in fitting},
                        self.first.before)  # fmt: skip


def real(x: np.ndarray) -> np.ndarray | None:
    return x.astype(np.float32) if x.dtype.name in REAL else None


@np.errstate(all="ignore")
def compared(pairs: Mapping[str, tuple[np.ndarray, np.ndarray]], before: str) -> Seen:
    """Measure (theirs, ours) of each tap that has the shape."""
    far, off, alike, whole = {}, {}, {}, np.inf
    for tap, (x, truth) in pairs.items():
        size = norm(truth)
        far[tap] = finite(norm(x - truth) / size)
        rows = np.sum(x * truth, -1, keepdims=True) / np.sum(truth * truth, -1, keepdims=True)
        off[tap] = finite(norm(x - rows * truth) / norm(x))
        alike[tap] = -finite(-np.sum(x * truth) / (size * norm(x)))
        if tap == before:
            factor = np.sum(x * truth) / size**2
            whole = finite(norm(x - factor * truth) / norm(x))
    return Seen(far, off, alike, whole)


def norm(x: np.ndarray) -> np.float64:
    """Return the root of the sum of squares: of numpy's kind, which may be divided by nought."""
    return np.sqrt(np.sum(np.square(x, dtype=np.float64)))


def finite(x: float) -> float:
    return float(x) if np.isfinite(x) else np.inf
