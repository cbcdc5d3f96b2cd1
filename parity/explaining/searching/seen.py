"""What sets of bugs make of one piece, as far as a quick look sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt

from lockstep.parity.explaining.searching.atom_sets import Atoms, in_rows, picked
from lockstep.parity.explaining.searching.earned import LESS, earned
from lockstep.parity.explaining.searching.hypothesis import (
    Atom,
    Hypothesis,
    borrowed,
    in_order,
    rewritten,
)
from lockstep.parity.explaining.searching.in_line import in_line
from lockstep.parity.explaining.searching.look import FAR, Look
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph.graph import Graph, Piece

VISIBLE = 0.3  # noises that a bug must move a value by, to be thought of
FAINT = 0.01  # the same where few bugs can be: what hardly shows alone may show beside another
PAIRS = 60  # candidates of which every pair is tried
IN_LINE = 0.35  # of an error with what a bug that rounds coarsely changes, for it to be there
CHANCE = 5.0  # standard deviations of numbers that are in line by chance, beyond which it must be
BEGUN = 8.0  # that a set may leave of one of the first tokens, where routers may turn others


@dataclass
class Seen:
    """Looks at one piece, each kept. `atoms` are all bugs that touch it."""

    trial: Trial
    piece: Piece
    atoms: Sequence[Atom]
    looks: dict[tuple[Atoms, int | None], Look | None] = field(default_factory=dict)
    proven: Collection[Hypothesis] = ()  # bugs without which a like piece cannot be explained

    @cached_property
    def bringing(self) -> Atoms:
        """The bugs that bring calls from elsewhere into this piece."""
        calls, graph = self.piece.calls, self.trial.graph
        whole = (atom for atom in self.atoms if atom.hypothesis.whole)
        return frozenset(atom for atom in whole if any(borrowed(atom.hypothesis, calls, graph)))

    def alone(self, atom: Atom) -> Atoms:
        """Return a set of one bug, and of that which brings what it changes into this piece."""
        here = not atom.calls.isdisjoint(self.piece.calls)
        return frozenset([atom]) if here else self.bringing | {atom}

    def look(self, atoms: Atoms, rows: int | None) -> Look | None:
        """Look at a set of bugs on the first `rows` tokens; None if they contradict each other."""
        key = atoms, rows
        if key not in self.looks:
            calls = rewritten(atoms, self.trial.graph)
            self.looks[key] = None if calls is None else self.trial.look(self.piece, calls, rows)
        return self.looks[key]

    def look_at(self, some: Iterable[Atoms], rows: int | None) -> None:
        """Look at sets of bugs together, which takes less than one after another."""
        new = dict.fromkeys(atoms for atoms in some if (atoms, rows) not in self.looks)
        calls = {atoms: rewritten(atoms, self.trial.graph) for atoms in new}
        known = {atoms: one for atoms, one in calls.items() if one is not None}
        looks = self.trial.looks(self.piece, [*known.values()], rows)
        self.looks |= {(atoms, rows): None for atoms in new}
        self.looks |= {(atoms, rows): look for atoms, look in zip(known, looks, strict=True)}

    def effect(self, atom: Atom, first: int, last: int | None) -> float:
        """Return how far a bug alone moves a stretch of tokens, over the noise."""
        found = self.look(self.alone(atom), None)
        return found.effect(first, last) if found else 0.0

    def possible(self, atom: Atom) -> bool:
        """Say whether a bug moves the piece, and not to what is no number if the port has some."""
        return self.effect(atom, 0, None) > VISIBLE and self.moves(atom)

    def moves(self, atom: Atom) -> bool:
        """Say whether it may do so beside others, where few bugs can be."""
        effect = self.effect(atom, 0, None)
        known = effect < FAR or not self.trial.finite(self.piece.target)
        return effect > self.least and known

    @property
    def least(self) -> float:
        """Return how many noises a bug must move a value by, to be tried beside others."""
        return FAINT if len(self.atoms) <= PAIRS else VISIBLE

    def fit(self, atoms: Atoms, first: int = 0, last: int | None = None) -> tuple[float, ...]:
        """Return how far the port is from a set of bugs: as it is, after a factor, in a mixture."""
        found = self.look(atoms, in_rows(atoms, last))
        if found is None:
            return (FAR,) * 3
        found = replace(found, noise=self.trial.relative_noise(self.piece, last))
        return found.raw(first, last), found.scaled(first, last), found.mixed(first, last)

    def nearest(self, some: Iterable[Atoms]) -> float:
        """Return how far the port is from the nearest of some sets, as it is."""
        return min((self.fit(atoms)[0] for atoms in some), default=FAR)

    def promising(self, atoms: Atoms, most: float) -> bool:
        """Say whether a quick measure leaves so little; if tokens may be off, not the first."""
        found = self.look(atoms, None)
        if found is None or not found.raw(0, None) <= most:
            return False
        return found.careful or found.beginning() <= BEGUN

    def earned(self, atoms: Atoms) -> bool:
        """Say whether each bug is there for a reason: the port is nearer with it.

        What rounds coarsely makes noise instead. It is there if like pieces show that the port has
        it, or if what is left without it goes its way.
        """

        def look(some: Atoms) -> Look | None:
            return self.look(some, None)

        coarse = [one for one in in_order(atoms) if one.hypothesis.fault.coarse]
        if earned(atoms, look):
            return all(self.beside(one, atoms) for one in coarse)
        given = frozenset(one for one in coarse if self.shown(one, atoms))
        return bool(given) and earned(atoms, look, given)

    def beside(self, one: Atom, atoms: Atoms) -> bool:
        """Say whether what rounds coarsely comes near for a reason, beside others. In half
        precision, whose own noise is as large, a tie alone may bring one token nearer.
        """
        if self.trial.dtype.itemsize > 2 or self.routed or len(atoms) == 1:
            return True
        looks = self.look(atoms, None), self.look(atoms - {one}, None)
        makes_none = looks[0] and looks[1] and looks[0].made > looks[1].made
        return bool(makes_none) or self.shown(one, atoms)

    def shown(self, one: Atom, atoms: Atoms) -> bool:
        """Say whether like pieces have what rounds coarsely, or the error without it goes its way,
        by more numbers than by chance.
        """
        if one.hypothesis in self.proven:
            return True
        calls = [rewritten(some, self.trial.graph) for some in (atoms - {one}, atoms)]
        if self.routed or calls[0] is None or calls[1] is None:
            return False
        found, numbers = in_line(self.trial, self.piece, calls[0], calls[1])
        return found >= IN_LINE and found * sqrt(numbers) > CHANCE

    def distinct(self, atoms: Sequence[Atom], first: int, last: int | None) -> list[Atom]:
        """Return a few of those that do the same to a stretch of tokens.

        Alone they do the same; beside another bug, which brings what was unseen into sight, not.
        """
        groups: dict[tuple[float, ...], list[Atom]] = {}
        for atom in sorted(atoms, key=lambda atom: len(atom.calls)):
            look = self.look(self.alone(atom), None)
            if look is not None:
                groups.setdefault(look.fingerprint(first, last), []).append(atom)
        return [one for group in groups.values() for one in picked(group)]

    def alike(self, atoms: Atoms, atom: Atom, others: Sequence[Atom]) -> list[Atom]:
        """Return the bugs that may stand where one of a set does, as far as a quick look tells.

        They do the same alone, or leave about as little in its calls: where that is noise, only all
        numbers together tell them apart, or a bug beside them hides what does. What rounds coarsely
        leaves about as little as what does so elsewhere, and may stand for what is truly nearer. If
        nothing at all is left, as behind an overflow, any bug may do that.
        """
        alone, rest = self.alone(atom), atoms - {atom}
        exact = self.fit(atoms)[0] == 0
        graph = self.trial.graph
        same = [
            one for one in others if one not in atoms and (exact or may_stand_for(one, atom, graph))
        ]
        self.look_at((rest | {one} for one in same), None)
        found = [one for one in others if self.like(self.alone(one), alone)]
        near = (one for one in same if self.fit(rest | {one})[0] <= self.close)
        return [*dict.fromkeys((*found, *near, *self.nearer(rest, atom, others)))]

    def nearer(self, rest: Atoms, atom: Atom, others: Sequence[Atom]) -> list[Atom]:
        """Return the bugs that bring the port nearer than one does that only makes noise.

        Noise lets a set pass that lacks a bug with a way of its own, which one measure shows.
        """
        if not atom.hypothesis.fault.coarse or atom.hypothesis in self.proven:
            return []
        some = [one for one in others if one not in rest]
        self.look_at((rest | {one} for one in some), None)
        least = LESS * min(self.fit(rest)[0], self.fit(rest | {atom})[0])
        return [one for one in some if self.fit(rest | {one})[0] < least]

    def like(self, one: Atoms, other: Atoms) -> bool:
        looks = self.look(one, None), self.look(other, None)
        return bool(looks[0] and looks[1] and looks[0].resembles(looks[1]))

    @property
    def routed(self) -> bool:
        """Say whether the piece has a router whose choice the port did not dump."""
        return bool(self.trial.routers_of(self.piece))

    def coarse(self, atoms: Atoms) -> bool:
        """Say whether a bug among these rounds coarser than the port, float32, computes."""
        wide = self.trial.dtype.itemsize > 2
        return wide and any(atom.hypothesis.fault.coarse for atom in atoms)

    @property
    def close(self) -> float:
        """Return what the quick measure may leave on a few tokens, whose noise is uncertain."""
        return 3 * self.trial.limit

    def acausal(self, known: list[Atoms], shown: Sequence[Atom]) -> list[Atoms]:
        """Return sets with a bug more that lets a token see later ones.

        The first token sees most of them. So where it is right, no bug does that moves it.
        """
        found = self.look(frozenset(), None)
        right = found is not None and found.raw(0, 1) <= self.close
        some = [
            frozenset([atom]) for atom in shown
            if atom.hypothesis.fault.acausal
            and not (right and self.effect(atom, 0, 1) > self.close)
        ]  # fmt: skip
        return [atoms | one for atoms in known for one in some]


def may_stand_for(one: Atom, other: Atom, graph: Graph) -> bool:
    """Say whether two bugs change the same calls, or some that follow each other, or make noise,
    each in its own.
    """
    if one.hypothesis.fault.coarse and other.hypothesis.fault.coarse:
        return True
    return one.calls == other.calls or follow(one.calls, other.calls, graph)


def follow(some: Collection[int], others: Collection[int], graph: Graph) -> bool:
    """Say whether a call reads what one of the others makes, for every call of either."""
    return len(some) == len(others) and all(
        mine in graph.sources(theirs) or theirs in graph.sources(mine)
        for mine, theirs in zip(sorted(some), sorted(others), strict=True)
    )
