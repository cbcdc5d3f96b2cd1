"""Where a bug should have been seen, if it were everywhere, and was not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.hypothesis import (
    Atom,
    Hypothesis,
    borrowed,
    rewritten,
)
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph.graph import Piece

LOUD = 4.0  # noises that a bug would move a right value by, for its absence to be certain
MOST_BESIDE = 6  # contradictions that are counted in the layers where a bug acts


def contradictions(
    hypothesis: Hypothesis, trial: Trial, right: Iterable[Piece], most: int
) -> list[Piece]:
    """Return the right pieces, at most so many, that the bug would have made wrong."""
    found = []
    for piece in right:
        here = hypothesis.calls & frozenset(piece.calls)
        if not here or len(found) >= most:
            continue
        calls = rewritten([Atom(hypothesis, here)], trial.graph)
        if calls and trial.look(piece, calls).effect(0, None) > LOUD:
            found.append(piece)
    return found


@dataclass
class Beside:
    """Counts where a bug of some layers should have been seen in these layers too, and was not.

    A bug that is in one layer alone says nothing against itself in the others. But what changes
    each projection is less likely to be in one of a layer than what changes that one alone. It was
    not seen where nothing is wrong, nor where other bugs `explained` all that is. Worst is a right
    value that the bug's own call would have made wrong.
    """

    trial: Trial
    right: list[Piece]
    explained: Sequence[tuple[Piece, list[Explanation]]] = ()
    counted: dict[tuple[Hypothesis, frozenset[int | None]], int] = field(default_factory=dict)
    refuted: dict[Atom, bool] = field(default_factory=dict)

    def __call__(self, atom: Atom) -> int:
        calls = self.trial.graph.calls
        layers = frozenset(calls[number].layer for number in atom.calls)
        key = atom.hypothesis, layers
        if key not in self.counted:
            found = contradictions(atom.hypothesis, self.trial, self.near(layers), MOST_BESIDE)
            others = (
                self.spoilt(atom.hypothesis, piece, some)
                for piece, some in self.explained
                if calls[piece.target].layer in layers
            )
            self.counted[key] = min(len(found) + sum(others), MOST_BESIDE)
        if atom not in self.refuted:
            own = replace(atom.hypothesis, calls=atom.calls)
            self.refuted[atom] = bool(contradictions(own, self.trial, self.near(layers), 1))
        return self.counted[key] + MOST_BESIDE * self.refuted[atom]

    def near(self, layers: frozenset[int | None]) -> Iterator[Piece]:
        """Yield the right pieces that end in some layers."""
        calls = self.trial.graph.calls
        return (piece for piece in self.right if calls[piece.target].layer in layers)

    def spoilt(self, one: Hypothesis, piece: Piece, some: list[Explanation]) -> bool:
        """Say whether a piece is explained, and would not be if this bug were there too."""
        atoms, graph = some[0].atoms, self.trial.graph
        brought = (borrowed(atom.hypothesis, piece.calls, graph) for atom in atoms)
        here = one.calls & frozenset(piece.calls).union(*brought)
        if not here or any(atom.hypothesis == one for other in some for atom in other.atoms):
            return False
        alone, beside = rewritten(atoms, graph), rewritten(atoms | {Atom(one, here)}, graph)
        if not alone or not beside:
            return False
        left, spoilt = (self.trial.look(piece, calls).raw(0, None) for calls in (alone, beside))
        return spoilt > LOUD * max(left, 1.0)
