"""A wide search over few tokens: thousands of sets of bugs, each roughly.

A right bug among others that are still missing often makes nothing better. A narrow search loses
it then. A set costs little here, so hundreds of them are gone on from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from lockstep.parity.explaining.searching.atom_sets import Atoms, distinct, unmeasured
from lockstep.parity.explaining.searching.earned import parts
from lockstep.parity.explaining.searching.few_tokens import FewTokens
from lockstep.parity.explaining.searching.hypothesis import Atom, in_order
from lockstep.parity.explaining.searching.look import FAR
from lockstep.parity.explaining.searching.pace import Pace
from lockstep.parity.explaining.searching.price import price_of_token
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph.graph import Piece

FEW = 6  # tokens that are looked at
BEAM = 10  # sets that are gone on from, by each measure
TOGETHER = 2048
NEAREST = 8  # sets that are handed on
FEWEST = 3  # of them, of which each bug is exchanged with each other one
MOST, LEAST = 50_000, 5_000  # sets that are looked at; where the work allows fewer, none is
WORK = 6e10  # products with matrices, of these tokens of all that is looked at
BEFORE = 0.5  # of these sets, before it is known that something stays of the tokens
QUICK = 2  # times as many, while each step comes much nearer
SURE = 2.0  # noises of the tokens that are looked at, below which nothing is missing
TRUSTED = 0, 3  # measures that no factor helps: some sets of wrong bugs fit after one
CHANCE = 0.9  # of an error, that the best of some hundred wrong bugs leaves
LEFT = 0.1  # of a value's size, below which bugs that are still missing add up
LEADS = 0.3  # the same, for a search that goes one way


@dataclass
class Wide:
    """The search over a few tokens of a piece for sets of these bugs."""

    few: FewTokens
    candidates: Sequence[Atom]
    effort: float = 1.0  # of the usual work
    part: float = 1.0  # of it, that may be used so far
    by_chance: float = CHANCE  # of an error, that a bug more must leave less of
    quick: bool = False  # whether the last step came much nearer
    count: int = 0
    reached: list[Atoms] = field(default_factory=list)  # sets that the last search ended with
    errors: dict[Atoms, tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, trial: Trial, piece: Piece, candidates: Sequence[Atom], effort: float = 1.0
    ) -> Wide:
        few = few_of(trial, piece, candidates, FEW)
        return cls(few, candidates, effort)

    @property
    def possible(self) -> bool:
        """Say whether tokens of the piece go their own ways, and it is not too much work."""
        return self.most >= LEAST and len(self.few.tokens) > 0 and bool(self.few.spans)

    @cached_property
    def most(self) -> float:
        price = len(self.few.tokens) * price_of_token(self.few.trial, self.few.piece)
        return min(MOST, WORK / max(price, 1.0))

    @property
    def spent(self) -> bool:
        part = self.part * (QUICK if self.quick else 1)
        return self.count > part * self.effort * self.most

    @property
    def enough(self) -> float:
        """How near a set is that leaves no more to be found here: some noises."""
        return SURE * self.few.trial.relative_noise(self.few.piece, None)

    def sure(self, starts: Iterable[Atoms], deepest: int) -> list[Atoms]:
        """Return the sets that leave nothing but noise, by a part of the work.

        The rest of it is for what comes near: it need not measure again what was measured here.
        """
        self.part, self.by_chance = BEFORE, 1.0
        near = self.nearest(starts, deepest)
        self.part, self.by_chance = 1.0, CHANCE
        return [atoms for atoms in near if self.errors[atoms][0] <= self.enough]

    def nearest(self, starts: Iterable[Atoms], deepest: int) -> list[Atoms]:
        """Return the sets that are near to what the port has, the nearest one first.

        A search goes on from where the one before it ended.
        """
        self.reached = self.grown([atoms for atoms in starts if atoms not in self.errors], deepest)
        self.measure(less for atoms in self.reached for less in parts(atoms) if less)
        return self.with_one_exchanged()

    def grown(self, new: Sequence[Atoms], deepest: int) -> list[Atoms]:
        """Return the best sets that begin with some new ones, or go on from those reached before,
        each with so many bugs more at most.
        """
        begun = [*new, *self.reached]
        self.measure(begun)
        beam, alone = self.best(begun, BEAM), frozenset() in new
        pace = Pace(last=(*self.least(beam),))
        for _ in range(deepest):
            if not beam or self.spent or self.errors[beam[0]][0] <= self.enough:
                break
            kept = [atoms for atoms in beam if alone and atoms]
            larger = self.alone() if alone else self.beside(beam)
            self.measure(larger)
            beam, alone = [*dict.fromkeys([*self.best(larger, BEAM), *kept])], False
            if beam and pace.stalls(*self.least(beam)):
                break
            self.quick = pace.quick
        return beam

    def with_one_exchanged(self) -> list[Atoms]:
        """Return the sets that are near, once no other bug in the place of one comes nearer."""
        near = self.near()
        while near and not self.spent and self.errors[near[0]][0] > self.enough:
            before = near[0]
            self.measure(self.exchanged(near[:FEWEST]))
            near = self.near()
            if near[0] == before:
                break
        return near

    def alone(self) -> list[Atoms]:
        """Return each bug alone. The sets that a search begins with wait for the best of these: all
        that are one bug larger than them would be too much work.
        """
        return [frozenset([one]) for one in self.candidates]

    def beside(self, beam: Iterable[Atoms]) -> dict[Atoms, None]:
        """Return sets with one bug more, and without one or two of their own."""
        larger = dict.fromkeys(
            atoms | {one} for atoms in beam for one in self.candidates if one not in atoms
        )
        return larger | dict.fromkeys(less for atoms in beam for less in parts(atoms) if less)

    def near(self) -> list[Atoms]:
        """Return the sets that leave little of all that was measured, the nearest one first."""
        near = {atoms: error[0] for atoms, error in self.errors.items() if error[0] <= LEFT}
        return distinct(near, NEAREST)

    def leads(self) -> list[Atoms]:
        """Return the few sets, the smallest that do, from which a way may lead on."""
        led = {atoms: error[0] for atoms, error in self.errors.items() if error[0] <= LEADS}
        return distinct(led, FEWEST, CHANCE)

    def exchanged(self, some: Iterable[Atoms]) -> Iterator[Atoms]:
        """Yield sets with another bug in the place of one: both together may do nothing."""
        for atoms in some:
            for one in in_order(atoms):
                yield from (atoms - {one} | {other} for other in self.candidates)

    def least(self, beam: Iterable[Atoms]) -> Iterator[float]:
        """Yield what the nearest of some sets leaves, by each measure that is to be trusted."""
        errors = [self.errors[atoms] for atoms in beam]
        yield from (min((error[measure] for error in errors), default=FAR) for measure in TRUSTED)

    def best(self, some: Iterable[Atoms], keep: int) -> list[Atoms]:
        known = {atoms: self.errors[atoms] for atoms in some if atoms in self.errors}
        found: dict[Atoms, None] = {}
        for measure in range(4):
            one = {atoms: error[measure] for atoms, error in known.items()}
            found |= dict.fromkeys(distinct(one, keep, self.by_chance))
        return list(found)

    def measure(self, some: Iterable[Atoms]) -> None:
        for part in unmeasured(self, some, TOGETHER):
            values = self.few.values(part)
            known = [(a, v) for a, v in zip(part, values, strict=True) if v is not None]
            if known:
                stack = np.stack([value for _, value in known])
                for (atoms, _), *error in zip(known, *self.measures(stack), strict=True):
                    self.errors[atoms] = tuple(map(float, error))

    @np.errstate(all="ignore")
    def measures(self, values: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return how far the port is from values (M, S, N), over the size of what was compared.

        As it is; after a factor; in a mixture with the right value; and of the best token alone,
        since one that shows nothing of what is missing is right already. After a factor the size
        is the port's: else a bug that makes huge numbers is near to anything.
        """
        port, right = self.few.port, self.few.ends
        of_tokens = np.square(values - port).sum(-1) / np.square(values).sum(-1)
        ww, wp = np.square(values).sum((1, 2)), (values * port).sum((1, 2))
        pp, rr, rp = np.square(port).sum(), np.square(right).sum(), (right * port).sum()
        wr = (values * right).sum((1, 2))
        raw = (ww - 2 * wp + pp) / ww
        scaled = 1 - wp**2 / ww / pp
        det = ww * rr - wr**2
        mixed = 1 - (rr * wp**2 - 2 * wr * wp * rp + ww * rp**2) / det / pp
        found = raw, scaled, np.where(det > 1e-9 * ww * rr, mixed, scaled), of_tokens.min(-1)
        return tuple(np.where(np.isfinite(one), np.sqrt(np.abs(one)), FAR) for one in found)


def few_of(trial: Trial, piece: Piece, candidates: Sequence[Atom], count: int) -> FewTokens:
    """Return so many tokens of a piece, of those that prove something."""
    axis = trial.graph.token_axes[piece.target][0]
    tokens = np.arange(trial.graph.shapes[piece.target][axis])
    unseen = trial.unseen.get(piece.target)
    tokens = tokens if unseen is None else tokens[~unseen.any(axis=0)]
    wrong = tokens[are_off(trial, piece)[tokens]]
    tokens = wrong if len(wrong) else tokens
    return FewTokens(trial, piece, spread_out(tokens, count), candidates)


def are_off(trial: Trial, piece: Piece) -> np.ndarray:
    """Say of each token whether the port is not right there: only these show what is wrong."""
    look = trial.look(piece, {})
    with np.errstate(all="ignore"):  # a broken port may hold anything
        return ~(np.sqrt(look.port / look.size) <= trial.limit * look.noise)


def spread_out(tokens: np.ndarray, few: int = FEW) -> np.ndarray:
    """Return a few tokens from the first to the last but one, or all if there are no more.

    The first sees one key alone, and the last but one does where a mask is inverted: so it shows
    what is wrong besides.
    """
    if len(tokens) <= few:
        return tokens
    places = np.linspace(0, len(tokens) - 2, few).round().astype(int)
    return np.unique(tokens[places])
