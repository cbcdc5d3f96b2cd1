"""Know by their values what numbered tensors are whose names do not say it: `h.0` to `h.11`.

What equals a value of the reference's first layer, and no other, is that value, in every layer: a
port that is right is never mistaken. So `h.0` tells whether streams enter layers or leave them,
and whether the embedding is among them. The one behind the last layer may come out of the last
norm, as in `output_hidden_states=True`. Where nothing equals, since a bug is in the first layer
already, names that are usual for streams are taken at their word, if as many as there are layers
are nearer to what leaves the first layer than to all else, and are not that but for a factor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from lockstep.parity.naming.align import MOVES, move_between
from lockstep.parity.naming.families import Family, Shape, families, plain
from lockstep.parity.naming.first_layer import FirstLayer
from lockstep.parity.naming.recovery import Recovery
from lockstep.parity.naming.roles import is_usual_for_streams

SAME = 0.05  # of a value's size: more than half precision and packed activations make in a layer
ALONE = 4  # how many times as far all others must be
NEAR = 0.3  # the cosine with what leaves the first layer that a bug in it must leave
GLUED = re.compile(r"(?<=[A-Za-z])(?=(?:0|[1-9][0-9]{0,5})$)")
BY_NAME = "as such names mean it, though nothing of it is right: a map may say otherwise (--map)"
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


def recover_by_value(
    names: Mapping[str, Shape],
    known: Mapping[str, Shape],
    taken: set[str],
    read: Read,
    first: FirstLayer,
) -> Recovery:
    """Recover numbered names that no words explain; taps that are `taken` are given to none."""
    done = Recovery()
    glued = {GLUED.sub(".", name): name for name in names}
    shapes = {spelled: names[name] for spelled, name in glued.items()}
    for family in families(shapes).values():
        streams = Streams(family, known, read, glued, first)
        if not family.layered:
            found, told = streams.beside()
        elif len(family.shapes) > 1 and min(family.shapes) < 2:
            found, told = streams.taps()
        else:
            continue
        if not found or set(found.values()) & (taken | set(done.names.values())):
            continue
        done.names |= found
        done.plan.append(f"{len(found)} of {family.template} taken for {shown(found)}, {told}")
    return done


def shown(found: Mapping[str, str]) -> str:
    taps = [*found.values()]
    return " to ".join([taps[0], *taps[1:][-1:]])


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
        begin, values = min(self.family.shapes), self.first
        seen = self.seen(begin)
        if seen.same == values.before or seen.whole < SAME:
            following = self.seen(begin + 1).same if begin + 1 in self.family.shapes else None
            if following not in (None, values.behind):
                return {}, ""
            return self.placed(begin, [values.before]), "by the values that enter layer 0"
        if seen.same is not None:
            return self.placed(begin, [], seen.same), "by the values of layer 0"
        if self.is_usual(begin) and self.may_be_stream(seen):
            return self.placed(begin, []), BY_NAME
        return {}, ""

    def beside(self) -> tuple[dict[str, str], str]:
        """Return the tap of a name without a number, if it is one before the layers."""
        same = self.seen(0).same
        if same is None or same.startswith(self.first.behind):
            return {}, ""
        return {self.glued[self.family.names[0]]: same}, "by its values"

    def is_usual(self, begin: int) -> bool:
        """Say whether the name is one for streams, and there are as many as layers."""
        layers = set(range(begin, begin + self.first.layers))
        stem, words = plain(self.family.stem), self.family.words
        return is_usual_for_streams(stem, words) and self.family.shapes.keys() == layers

    def may_be_stream(self, seen: Seen) -> bool:
        """Say whether the stream behind a wrong first layer is the likeliest, and no other fits."""
        behind = self.first.behind
        if not seen.alike or min(seen.off.values()) < SAME:
            return False
        best = max(seen.alike, key=seen.alike.__getitem__)
        return best == behind and seen.alike[behind] > NEAR

    def placed(self, begin: int, before: list[str], like: str = "") -> dict[str, str]:
        """Return the taps of all, where each is there and fits; else of none.

        `before` is what comes before those of layer 0; `like` the tap of layer 0 that they are.
        """
        layers, like, found = self.first.layers, like or self.first.behind, dict[str, str]()
        part = like.removeprefix(self.first.behind)
        wanted = [*before, *(self.first.layer(n) + part for n in range(layers))]
        for number, spelled in self.family.names.items():
            place = number - begin
            last = not part and place >= layers and self.ends_normed(spelled)
            tap = self.first.norm if last else dict(enumerate(wanted)).get(place)
            if tap is None or place > layers or not self.fits(spelled, number, tap):
                return {}
            found[self.glued[spelled]] = tap
        return found

    def fits(self, spelled: str, number: int, tap: str) -> bool:
        shape = self.family.shapes[number]
        return tap in self.known and move_between(shape, self.known[tap]) is not None

    def ends_normed(self, spelled: str) -> bool:
        return self.first.is_normed(self.read(self.glued[spelled]).astype(np.float32))

    def seen(self, number: int) -> Seen:
        """Hold one of theirs to everything that the reference made up to the end of layer 0."""
        shape, name = self.family.shapes[number], self.glued[self.family.names[number]]
        fitting = [(tap, truth, move) for tap, truth in self.first.taps.items()
                   if (move := move_between(shape, truth.shape)) is not None]  # fmt: skip
        if not fitting:
            return Seen({}, {}, {})
        x = self.read(name).astype(np.float32)
        return compared({tap: (MOVES[move](x, truth.shape), truth) for tap, truth, move in fitting},
                        self.first.before)  # fmt: skip


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
