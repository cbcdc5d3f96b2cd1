"""Decide between the explanations of all pieces: which bugs a port has, and which fit as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis, in_order
from lockstep.parity.graph.graph import Graph, Piece

Key = tuple[str, str]  # a fault's id and its variant
ROUNDS = 3  # in which explanations come to agree with each other
CONTRADICTED = 3.0  # pieces of support that one contradiction outweighs


@dataclass
class Chosen:
    """A bug that was decided for: where it was found, and what does as well there."""

    hypothesis: Hypothesis
    pieces: list[Piece] = field(default_factory=list)
    atoms: list[Atom] = field(default_factory=list)
    rivals: list[set[Key]] = field(default_factory=list)  # for each piece, what fits in its place
    complete: list[bool] = field(default_factory=list)  # and whether all that may was looked for
    layers: Sequence[int] = ()  # which it is of, if that is not where it acts

    @property
    def calls(self) -> frozenset[int]:
        """The calls that it acts on, in all of its pieces."""
        return frozenset(number for atom in self.atoms for number in atom.calls)

    def layers_in(self, graph: Graph) -> list[int]:
        """Return the layers of the calls that it acts on."""
        found = {graph.calls[number].layer for number in self.calls}
        return sorted(layer for layer in found if layer is not None)

    @property
    def ties(self) -> set[Key]:
        """What fits in its place in every piece that it was found in."""
        return set.intersection(*self.rivals) if self.rivals else set()

    def but_in(self, pieces: Collection[Piece]) -> Chosen:
        """Return it as it was found in the other pieces."""
        kept = [place for place, piece in enumerate(self.pieces) if piece not in pieces]
        return Chosen(
            self.hypothesis,
            [self.pieces[place] for place in kept],
            [self.atoms[place] for place in kept],
            [self.rivals[place] for place in kept],
            [self.complete[place] for place in kept],
            self.layers,
        )


def key_of(atom: Atom) -> Key:
    return atom.hypothesis.id, atom.hypothesis.variant


def keys_of(atoms: Iterable[Atom]) -> frozenset[Key]:
    return frozenset(map(key_of, atoms))


def decide(
    explained: Sequence[tuple[Piece, list[Explanation]]],
    contradictions: Mapping[Key, int],
    beside: Callable[[Atom], int] = lambda atom: 0,
    kind: Callable[[Piece], Hashable] = lambda piece: None,
    common: Collection[Atom] = (),
) -> dict[Key, Chosen]:
    """Choose one explanation for each piece: that whose bugs explain most elsewhere.

    A bug that should have been seen where there is nothing wrong counts against itself; `beside`
    counts that in the layers alone where it acts. Like pieces are of one `kind`. What is `common`
    explains several pieces by what they all take.
    """
    support: Counter[Key] = Counter()
    for _, explanations in explained:
        support.update(set().union(*(keys_of(one.atoms) for one in explanations)))
    best: list[Explanation] = []
    against = partial(counted_against, contradictions=contradictions, beside=beside)
    sure = certain(explained, kind)
    for _ in range(ROUNDS):
        best = []
        for piece, explanations in explained:
            firm = partial(firm_in, kind(piece), sure=sure, beside=beside)
            worth = partial(worth_of, support=support, firm=firm, common=common, against=against)
            best.append(max(explanations, key=worth))
        support = Counter(key for one in best for key in keys_of(one.atoms))
    chosen: dict[Key, Chosen] = {}
    for (piece, explanations), one in zip(explained, best, strict=True):
        for atom in in_order(one.atoms):
            bug = chosen.setdefault(key_of(atom), Chosen(atom.hypothesis))
            bug.pieces.append(piece)
            bug.atoms.append(atom)
            bug.complete.append(one.complete)
            limit = contradictions.get(key_of(atom), 0), beside(atom)
            bug.rivals.append(
                {key_of(other) for other in rivals(atom, one, explanations)
                 if contradictions.get(key_of(other), 0) <= limit[0]
                 and beside(other) <= limit[1]}
            )  # fmt: skip
    return chosen


def certain(
    explained: Sequence[tuple[Piece, list[Explanation]]], kind: Callable[[Piece], Hashable]
) -> dict[str, set[Hashable]]:
    """Return the faults without which some piece cannot be explained, and of which kinds that is.

    Of which variant one is, another piece may tell.
    """
    found: dict[str, set[Hashable]] = {}
    for piece, explanations in explained:
        named = ({atom.hypothesis.id for atom in one.atoms} for one in explanations)
        for fault in set.intersection(*named):
            found.setdefault(fault, set()).add(kind(piece))
    return found


def firm_in(
    kind: Hashable,
    one: Explanation,
    *,
    sure: Mapping[str, set[Hashable]],
    beside: Callable[[Atom], int],
) -> int:
    """Count the faults of an explanation that must be there in any case, in a piece of some kind.

    One that is sure in other pieces is not sure here, if something beside it speaks against it.
    """
    there = [atom for atom in one.atoms if atom.hypothesis.id in sure]
    firm = (atom for atom in there if kind in sure[atom.hypothesis.id] or not beside(atom))
    return len({atom.hypothesis.id for atom in firm})


def counted_against(
    one: Explanation, *, contradictions: Mapping[Key, int], beside: Callable[[Atom], int]
) -> int:
    far = sum(contradictions.get(key, 0) for key in keys_of(one.atoms))
    return far + sum(map(beside, one.atoms))


def worth_of(
    one: Explanation,
    *,
    support: Mapping[Key, int],
    firm: Callable[[Explanation], int],
    common: Collection[Atom],
    against: Callable[[Explanation], int],
) -> tuple[float, ...]:
    """Return what speaks for an explanation: fewer bugs, those that must be there in any case,
    those in what other pieces take too, that explain more, and nothing wrongly.

    Of two that do as well, that which claims less; then that of the catalogue's first.
    """
    keys = keys_of(one.atoms)
    held = sum(support.get(key, 0) for key in keys) - CONTRADICTED * against(one)
    claimed = sum(len(atom.hypothesis.calls) for atom in one.atoms)
    first = sum(atom.hypothesis.order for atom in one.atoms)
    return -len(keys), firm(one), len(one.atoms.intersection(common)), held, -claimed, -first


def rivals(atom: Atom, best: Explanation, explanations: Sequence[Explanation]) -> set[Atom]:
    """Return what explains the piece in the place of an atom, all else the same.

    Of what needs two bugs there, neither is the one.
    """
    rest = keys_of(best.atoms - {atom})
    found: set[Atom] = set()
    for one in explanations:
        keys = keys_of(one.atoms)
        if (rest < keys and len(keys - rest) == 1) or rest == keys - {key_of(atom)}:
            found |= {other for other in one.atoms if key_of(other) not in rest}
    return {other for other in found if key_of(other) != key_of(atom)}
