"""Sets of bugs on both sides of the sum that attention ends with, each side searched by itself.

Where attention and MLP are wrong at once, the right bugs of one bring nothing nearer while the
other's are missing. What a few bugs behind the sum make of a token can be undone: it says what
the sum must have been. So the bugs before it are held against that, with nothing wrong behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, islice

import numpy as np

from lockstep.parity.explaining.searching.atom_sets import Atoms, distinct, unmeasured
from lockstep.parity.explaining.searching.few_tokens import Calls, FewTokens
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, in_order, rewritten
from lockstep.parity.explaining.searching.look import FAR
from lockstep.parity.explaining.searching.price import price_of_token
from lockstep.parity.explaining.searching.segments import signatures
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.explaining.searching.undone import led_back
from lockstep.parity.explaining.searching.wide import few_of
from lockstep.parity.graph.graph import Piece

TOKENS = 16  # that are looked at: of fewer, many wrong sets go the right way by chance
BEHIND = 400  # sets of bugs behind the sum that are undone
STEPS = 6  # that each may take
DEEPEST = 5  # bugs before it, beside those that a search starts from; behind it there are two
FIRST, BEAM = 20, 12  # sets that are gone on from, by each measure: at first, and later
ENDS = 10  # of what bugs behind may leave, for each of which the nearest set is gone on from
TOGETHER = 128  # sets that are held against all sums at once
HANDED_ON = 30  # sets of both sides
NEAR = 1e-4  # of the port's value, that may be left where a token is led back
FOUND = 0.5  # of the tokens, that must be led back
MOST = 25_000  # sets before the sum that are looked at
WORK = 1e10  # products, of the sets on either side
ENOUGH = 0.03  # of a value's size, that may be left: no more is missing


@dataclass
class BothEnds:
    """The search over a few tokens of a piece for sets of these bugs, from both of its ends."""

    few: FewTokens
    candidates: Sequence[Atom]
    starts: Sequence[Atoms] = (frozenset(),)  # that more bugs are added to
    effort: float = 1.0  # of the usual work
    count: int = 0
    errors: dict[Atoms, np.ndarray] = field(default_factory=dict)  # to each end, (ends,)
    least: dict[Atoms, tuple[float, ...]] = field(default_factory=dict)  # by each measure

    @classmethod
    def of(
        cls, trial: Trial, piece: Piece, candidates: Sequence[Atom], starts: Sequence[Atoms],
        effort: float,
    ) -> BothEnds:  # fmt: skip
        return cls(few_of(trial, piece, candidates, TOKENS), candidates, starts, effort)

    @property
    def middle(self) -> int:
        """The sum that attention ends with."""
        return self.few.spans[0].end

    def sets(self) -> list[Atoms]:
        """Return sets that come near to what the port has, the nearest first."""
        if len(self.few.spans) < 2 or not np.isfinite(self.few.port).all() or not self.ends:
            return []
        beam = [*dict.fromkeys(self.side(atoms, behind=False) for atoms in self.starts)]
        self.measure(beam)
        for depth in range(DEEPEST):
            larger = dict.fromkeys(
                atoms | {one} for atoms in beam for one in self.before if one not in atoms
            )
            self.measure(larger)
            beam = self.best(larger, BEAM if depth else FIRST)
            if not beam or self.spent or self.least[beam[0]][0] < ENOUGH:
                break
        return [*islice(dict.fromkeys(self.joined()), HANDED_ON)] if self.errors else []

    @cached_property
    def price(self) -> float:
        """Estimate the products that a set takes."""
        return len(self.few.tokens) * price_of_token(self.few.trial, self.few.piece)

    @property
    def spent(self) -> bool:
        return self.count > self.effort * min(MOST, WORK / self.price)

    def side(self, atoms: Iterable[Atom], *, behind: bool) -> Atoms:
        """Return the parts of some bugs that lie on one side of the sum."""
        parts = (
            Atom(one.hypothesis, frozenset(n for n in one.calls if (n > self.middle) == behind))
            for one in atoms
        )
        inside = frozenset(self.few.piece.calls)
        return frozenset(one for one in parts if not one.calls.isdisjoint(inside))

    def parts(self, *, behind: bool) -> list[Atom]:
        """Return the same of all candidates, in the order of the catalogue."""
        found = self.side(self.candidates, behind=behind)
        return in_order(found)

    @cached_property
    def before(self) -> list[Atom]:
        """The parts before the sum, each that does something of its own to it once."""
        parts = self.parts(behind=False)
        made = self.few.middles([rewritten([one], self.few.trial.graph) or {} for one in parts])
        return [*different(zip(parts, made, strict=True), self.usual)]

    @cached_property
    def usual(self) -> np.ndarray:
        """The sum as it should be, (1, S, N)."""
        return self.few.cut(self.few.right(self.middle), 1)

    @cached_property
    def stream(self) -> np.ndarray:
        """What attention is added to, (S, N); nothing if the port did not dump it."""
        few, graph = self.few, self.few.trial.graph
        taken = sorted(graph.sources(self.middle) & few.trial.dumped.keys())
        return few.cut(few.right(taken[0]), 1)[0] if taken else np.zeros(1)

    @cached_property
    def ends(self) -> list[tuple[Atoms, np.ndarray]]:
        """What attention must have added, (S, N), if some bugs are behind it."""
        found = []
        width = self.few.trial.graph.shapes[self.middle][-1]
        most = min(BEHIND, WORK / (self.price * STEPS * width))
        for atoms in islice(dict.fromkeys(self.behind()), round(self.effort * most)):
            calls = rewritten(atoms, self.few.trial.graph)
            value = None if calls is None else self.undone(calls)
            if value is not None:
                found.append((atoms, value - self.stream))
        return found

    def behind(self) -> Iterator[Atoms]:
        """Yield the sets of a few bugs behind the sum, each that does something of its own once:
        those first that move most.
        """
        parts = self.parts(behind=True)
        every = (rewritten([one], self.few.trial.graph) or {} for one in parts)
        made = (self.few.continued(calls, self.usual) for calls in every)
        moved = different(zip(parts, made, strict=True), self.few.ends)
        found = sorted(moved, key=lambda one: -moved[one])
        begun = dict.fromkeys(self.side(atoms, behind=True) for atoms in self.starts)
        pairs = ([one, other] for place, one in enumerate(found) for other in found[:place])
        for some in chain([()], ([one] for one in found), pairs):
            yield from (atoms.union(some) for atoms in begun)

    def undone(self, calls: Calls) -> np.ndarray | None:
        """Return what the sum (S, N) must have been for these calls to make what the port has; NaN
        for tokens of which it was not found, None if these are many.
        """
        continued = partial(self.few.continued, calls)
        found = led_back(self.usual, self.few.port[None], continued, NEAR, STEPS)
        if found is None or found[1].mean() < FOUND:
            return None
        return np.where(found[1][:, None], found[0][0], np.nan)

    @np.errstate(all="ignore")  # a broken port may hold anything
    def measure(self, some: Iterable[Atoms]) -> None:
        """Measure how far some sets before the sum are from each of the ends."""
        for part in unmeasured(self, some, TOGETHER):
            calls = [rewritten(atoms, self.few.trial.graph) for atoms in part]
            known = [(a, c) for a, c in zip(part, calls, strict=True) if c is not None]
            values = self.few.middles([one for _, one in known])
            pairs = [(a, v) for (a, _), v in zip(known, values, strict=True) if v is not None]
            if pairs:
                stack = np.stack([value for _, value in pairs]) - self.stream
                for (atoms, _), error in zip(pairs, self.measures(stack), strict=True):
                    self.least[atoms] = tuple(error.min(axis=1).tolist())
                    self.errors[atoms] = error[0].astype(np.float32)

    @cached_property
    def wanted(self) -> np.ndarray:
        return np.stack([value for _, value in self.ends])

    def measures(self, values: np.ndarray) -> np.ndarray:
        """Return how far values (M, S, N) are from each end, (M, 3, ends): as they are, after a
        factor, and by the best token alone.
        """
        told = np.isfinite(self.wanted[..., 0]).astype(float)  # (ends, S)
        wanted = np.nan_to_num(self.wanted)
        of_values = np.square(values).sum(-1)[:, :, None] * told.T
        of_ends = np.square(wanted).sum(-1).T[None]
        products = np.swapaxes(np.swapaxes(values, 0, 1) @ wanted.transpose(1, 2, 0), 0, 1)
        both = of_values + of_ends
        tokens = np.where(told.T, (both - 2 * products) / both, np.inf)
        raw = (both - 2 * products).sum(1) / both.sum(1)
        scaled = 1 - products.sum(1) ** 2 / of_values.sum(1) / of_ends.sum(1)
        found = np.stack([raw, scaled, tokens.min(1)], axis=1)
        return np.where(np.isfinite(found), np.sqrt(np.abs(found)), FAR)

    def best(self, some: Iterable[Atoms], keep: int) -> list[Atoms]:
        """Return the nearest sets by each measure, and to each of the likeliest ends."""
        known = [atoms for atoms in some if atoms in self.errors]
        found: dict[Atoms, None] = {}
        for measure in range(3):
            found |= dict.fromkeys(distinct({one: self.least[one][measure] for one in known}, keep))
        every = np.stack([self.errors[atoms] for atoms in known]) if known else np.empty((0, 0))
        for end in np.argsort(every.min(axis=0, initial=np.inf))[:ENDS]:
            found[known[int(every[:, end].argmin())]] = None
        return [*found]

    def joined(self) -> Iterator[Atoms]:
        """Yield the sets of both sides, the nearest ones first."""
        sets, every = [*self.errors], np.stack([*self.errors.values()])
        nearest = np.argpartition(every, min(4 * HANDED_ON, every.size) - 1, axis=None)
        nearest = nearest[: 4 * HANDED_ON]
        for place in nearest[np.argsort(every.flat[nearest])]:
            row, end = np.unravel_index(place, every.shape)
            yield joined(sets[row], self.ends[end][0])


@np.errstate(all="ignore")
def different(
    made: Iterable[tuple[Atom, np.ndarray | None]], right: np.ndarray
) -> dict[Atom, float]:
    """Return the bugs that make numbers of their own of a value, and how far they move it: sums of
    squares.
    """
    found: dict[bytes, tuple[Atom, float]] = {}
    usual = signatures(right.reshape(1, -1))[0]
    for one, value in made:
        if value is not None and np.isfinite(value).all():
            moved = float(np.square(value.ravel() - right.ravel()).sum())
            found.setdefault(signatures(value.reshape(1, -1))[0], (one, moved))
    found.pop(usual, None)
    return {one: moved for one, moved in found.values() if 0 < moved < math.inf}


def joined(one: Atoms, other: Atoms) -> Atoms:
    """Return the bugs of two sets; one that is in both is where either of them has it."""
    calls: dict[Hypothesis, frozenset[int]] = {}
    for atom in (*one, *other):
        calls[atom.hypothesis] = calls.get(atom.hypothesis, frozenset()) | atom.calls
    return frozenset(Atom(hypothesis, here) for hypothesis, here in calls.items())
