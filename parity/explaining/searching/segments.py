"""Sets of bugs that explain the first token, found segment by segment of a piece.

A bottleneck is a value that all later ones of a piece hang on alone, such as the residual stream
between attention and MLP. What any bugs before it make of it is stacked as one batch, and a bug
behind it is computed on all of that in one go. So each set of a few bugs on either side is tried.
A search that adds one bug after another has nothing to go by there: the right bug of the attention
makes nothing better as long as the MLP behind it is wrong as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from operator import itemgetter

import numpy as np

from lockstep.parity.explaining.searching.atom_sets import Atoms, count
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, rewritten
from lockstep.parity.explaining.searching.price import price_of_token
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Evaluator, Graph
from lockstep.parity.graph.call import Tensor
from lockstep.parity.graph.graph import Piece
from lockstep.parity.graph.refusals import if_computable
from lockstep.parity.noise.exact import FLOAT64, exact

MOST = 4  # bugs of a set
STATES = 3000  # values of a bottleneck that are gone on from
PAIRS = 60  # bugs of a segment, of which every pair is tried
THREES = 24  # bugs of several segments, of which every three are
WORK = 2.4e10  # products, of all states that bugs are computed on, until a piece is left
DIGITS = 6  # behind the point, in which two values of size one must agree to be one


@dataclass(frozen=True)
class States:
    """What sets of bugs make of a bottleneck: `values` (N, 1, ...) hold one row for each set.

    `run` computes what lies behind it, from all of them at once.
    """

    values: np.ndarray
    sets: list[Atoms]
    run: Evaluator
    had: dict[Hypothesis, np.ndarray] = field(default_factory=dict)

    def having(self, hypothesis: Hypothesis) -> np.ndarray:
        """Return which sets (N,) hold a bug."""
        if not self.had:
            for place, atoms in enumerate(self.sets):
                for atom in atoms:
                    none = np.zeros(len(self.sets), bool)
                    self.had.setdefault(atom.hypothesis, none)[place] = True
        return self.had.get(hypothesis, np.zeros(len(self.sets), bool))


@dataclass
class Segments:
    """The first token of one piece. `atoms` are the bugs that it shows."""

    trial: Trial
    piece: Piece
    atoms: Sequence[Atom]
    effort: float = 1.0  # of the usual work
    spent: float = 0.0

    @cached_property
    def price(self) -> float:
        """Estimate the products that one token of the piece takes."""
        return price_of_token(self.trial, self.piece)

    @cached_property
    def taken(self) -> frozenset[int]:
        """The values of the port that the piece is computed from."""
        return frozenset().union(*map(self.trial.graph.sources, self.piece.calls))

    def sets(self, close: float) -> list[Atoms]:
        """Return the sets that leave at most so many noises: the smallest ones alone."""
        port = self.trial.port(self.piece.target, 1)
        cuts = bottlenecks(self.piece, self.trial.graph, self.trial.dumped)
        if len(port) != 1 or len(cuts) < 2:
            return []
        states, before = States(np.zeros((1, 1)), [frozenset()], self.trial.centre(1)), -1
        for cut in cuts[:-1]:
            states, before = self.through(states, before, cut), cut
            if not states.sets:  # they cannot be stacked, or there are too many of them
                return []
        near = port, close * self.trial.relative_noise(self.piece, 1)
        for total in range(2, MOST + 1):
            found = self.arrived(states, before, total, near)
            if found:
                return sorted(found, key=lambda atoms: (count(atoms), -size(atoms)))
        return []

    def through(self, states: States, before: int, cut: int) -> States:
        """Return what the bugs up to a bottleneck make of it, each value once."""
        found: dict[bytes, tuple[int, np.ndarray, Atoms, tuple[Alike, ...]]] = {}
        few = self.by_count(states, before)
        for some in self.choices(states, before, cut):
            for bugs, here in enumerate(few[: MOST - len(some)]):
                values = self.carried(here, cut, some)
                counts = (bugs + more_in(here, some)).tolist()
                for place, key in enumerate(signatures(values)):
                    if key not in found:
                        value = values[place : place + 1]
                        found[key] = counts[place], value, here.sets[place], some
        kept = sorted(found.values(), key=itemgetter(0))[:STATES]
        values = np.concatenate([value for _, value, _, _ in kept] or [states.values[:0]])
        return self.from_here(values, [with_more(had, some) for _, _, had, some in kept], cut)

    def arrived(
        self, states: States, before: int, total: int, near: tuple[np.ndarray, float]
    ) -> dict[Atoms, None]:
        """Return the sets, of so many bugs on all sides, that make what the port has."""
        found: dict[Atoms, None] = {}
        few = self.by_count(states, before)
        for some in self.choices(states, before, self.piece.target):
            if len(some) > 2:  # they are there already
                here = self.holding(states, before, some) if total == len(some) else few[-1]
            else:
                here = few[total - len(some)]
            values = self.carried(here, self.piece.target, some)
            for place in close_to(values, *near):
                found.setdefault(with_more(here.sets[place], some))
        return found

    def carried(self, states: States, cut: int, some: Sequence[Alike]) -> np.ndarray:
        """Return the next bottleneck (N, ...) with some bugs more: of each state, or of none."""
        values = self.values(states, cut, some) if states.sets else None
        if values is None or len(values) != len(states.sets) or values.ndim < 3:
            return np.empty((0, 1, 1))
        return values

    def values(self, states: States, cut: int, some: Sequence[Alike]) -> np.ndarray | None:
        """Compute a bottleneck from each state of the one before, with some bugs between them."""
        calls = rewritten([alike.usual for alike in some], self.trial.graph)
        if calls is None:
            return None
        self.trial.count += 1
        self.spent += len(states.sets) * self.price
        if self.spent > self.effort * WORK:
            return None
        with if_computable(), np.errstate(all="ignore"):  # a broken port may hold anything
            return states.run.target(cut, calls)
        return None

    def from_here(self, values: np.ndarray, sets: list[Atoms], cut: int) -> States:
        trial, many = self.trial, len(values)
        dumped = {
            number: np.broadcast_to(value, (many, *value.shape[1:]))
            for number in sorted(self.taken & trial.dumped.keys())
            for value in [trial.dumped[number]]
        } | {cut: values}  # fmt: skip
        ops = exact(trial.ops, trial.dtype)
        return States(values, sets, Evaluator(trial.graph, ops, FLOAT64, dumped, trial.read, 1))

    def by_count(self, states: States, before: int) -> list[States]:
        """Return the states of so many bugs, by that number."""
        if before < 0:
            return [states]
        counts = np.array([count(atoms) for atoms in states.sets])
        return [self.some(states, before, counts == wanted) for wanted in range(MOST + 1)]

    def holding(self, states: States, before: int, some: Sequence[Alike]) -> States:
        """Return the states in which some bugs all are already."""
        held = np.logical_and.reduce([alike.held_by(states) for alike in some])
        return self.some(states, before, held)

    def some(self, states: States, before: int, kept: np.ndarray) -> States:
        sets = [states.sets[place] for place in np.flatnonzero(kept)]
        return self.from_here(states.values[kept], sets, before)

    def choices(self, states: States, before: int, cut: int) -> list[tuple[Alike, ...]]:
        """Return the sets of bugs between two bottlenecks that are tried.

        Of three, in the first segment those that go on in others, later those that come from there.
        """
        between = [number for number in self.piece.calls if before < number <= cut]
        alike = self.alike(between, cut)
        wide = [one for one in alike if any(self.beyond(atom, between) for atom in one.members)]
        pairs = combinations(alike if len(alike) <= PAIRS else wide[:PAIRS], 2)
        threes = combinations(wide[:THREES], 3) if before < 0 else went_on(states, alike)
        return [(), *((one,) for one in alike), *pairs, *threes]

    def beyond(self, atom: Atom, between: Collection[int]) -> bool:
        """Say whether a bug shows in other segments too."""
        return any(
            other.hypothesis == atom.hypothesis and not other.calls <= frozenset(between)
            for other in self.atoms
        )

    def alike(self, between: Collection[int], cut: int) -> list[Alike]:
        """Return the bugs between two bottlenecks, those that do the same to the first together."""
        parts = {Atom(one.hypothesis, one.calls & frozenset(between)): None for one in self.atoms}
        start = States(np.zeros((1, 1)), [frozenset()], self.trial.centre(1))
        found = {key: Alike([]) for key in signatures(start.run.target(cut))}
        right = next(iter(found))
        for part in parts:
            value = self.values(start, cut, [Alike([part])]) if part.calls else None
            if value is not None and len(value) == 1:
                (key,) = signatures(value)
                found.setdefault(key, Alike([])).members.append(part)
        return [alike for key, alike in found.items() if key != right]


@dataclass(frozen=True)
class Alike:
    """Bugs that do the same to a bottleneck, if nothing else is wrong."""

    members: list[Atom]

    @property
    def usual(self) -> Atom:
        return self.members[0]

    def held_by(self, states: States) -> np.ndarray:
        """Return which sets (N,) hold one of them."""
        return np.logical_or.reduce([states.having(one.hypothesis) for one in self.members])

    def beside(self, known: Collection[Hypothesis]) -> Atom:
        """Return the one that is there already, elsewhere; else the first."""
        return next((one for one in self.members if one.hypothesis in known), self.usual)


def with_more(atoms: Atoms, some: Iterable[Alike]) -> Atoms:
    """Return a set with more bugs, each of them whole."""
    known = {atom.hypothesis: atom.calls for atom in atoms}
    for alike in some:
        atom = alike.beside(known)
        known[atom.hypothesis] = known.get(atom.hypothesis, frozenset()) | atom.calls
    return frozenset(Atom(hypothesis, calls) for hypothesis, calls in known.items())


def more_in(states: States, some: Iterable[Alike]) -> np.ndarray:
    """Return how many bugs each set (N,) has more with some more: those that it does not hold.

    Two parts of a bug are one.
    """
    none = np.zeros(len(states.sets), bool)
    added: dict[Hypothesis, np.ndarray] = {}
    for alike in some:
        bugs = [one.hypothesis for one in alike.members]
        held = [alike.held_by(states), *(added.get(bug, none) for bug in bugs)]
        added[bugs[0]] = added.get(bugs[0], none) | ~np.logical_or.reduce(held)
    return sum(added.values(), none.astype(int))


def went_on(states: States, here: Sequence[Alike]) -> Iterator[tuple[Alike, ...]]:
    """Yield the bugs of every set of three, where they are in the next segment too."""
    by_bug = {atom.hypothesis: alike for alike in here for atom in alike.members}
    held = (frozenset(atom.hypothesis for atom in atoms) for atoms in states.sets)
    for known in dict.fromkeys(held):
        if len(known) == 3 and all(one in by_bug for one in known):
            some = [by_bug[one] for one in sorted(known, key=lambda one: one.rank)]
            if len({*map(id, some)}) == 3:
                yield tuple(some)


@np.errstate(all="ignore")  # a broken port may hold anything
def close_to(values: np.ndarray, port: np.ndarray, most: float) -> np.ndarray:
    """Return the rows (N, ...) that are so near to a value, relative to the smaller of both.

    Relative to their own size rows of numbers without bound are near to anything.
    """
    rows = values.reshape(len(values), math.prod(values.shape[1:]))
    off = np.sqrt(np.square(rows - port.reshape(1, -1)).mean(axis=1))
    sizes = np.minimum(np.square(rows).mean(axis=1), np.square(port).mean())
    return np.flatnonzero(off <= most * np.sqrt(sizes))


def bottlenecks(piece: Piece, graph: Graph, dumped: Collection[int]) -> list[int]:
    """Return the values of a piece that all later ones hang on alone; its target is the last."""
    inside = frozenset(piece.calls)
    carrying: set[int] = set()  # what depends on weights or on what the port dumped
    for number in piece.calls:
        sources = graph.sources(number)
        own = any(isinstance(ref, Tensor) for ref in graph.calls[number].inputs)
        if own or sources & carrying or sources & frozenset(dumped):
            carrying.add(number)
    used = {n: max((t for t in graph.consumers[n] if t in inside), default=n) for n in carrying}
    return [
        cut for cut in piece.calls
        if cut == piece.target
        or {n for n in carrying if n <= cut and used[n] > cut} == {cut}
    ]  # fmt: skip


def signatures(values: np.ndarray) -> list[bytes]:
    """Return what two equal values, of many (N, ...), share, but for their last digits."""
    with np.errstate(all="ignore"):  # a broken port may hold anything
        rows = values.reshape(len(values), math.prod(values.shape[1:]))
        sizes = np.sqrt(np.square(rows).mean(axis=1))
        rounded = np.round(rows / sizes[:, None], DIGITS) + 0.0
        pairs = zip(sizes.tolist(), rounded, strict=True)
        return [f"{size:.6g}".encode() + row.tobytes() for size, row in pairs]


def size(atoms: Iterable[Atom]) -> int:
    return sum(len(atom.calls) for atom in atoms)
