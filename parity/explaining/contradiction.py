"""Where a bug should have been seen, if it were everywhere, and was not."""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.parity.explaining.hypothesis import Atom, Hypothesis, rewritten
from lockstep.parity.explaining.trial import Trial
from lockstep.parity.graph.graph import Piece

LOUD = 4.0  # noises that a bug would move a right value by, for its absence to be certain


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
