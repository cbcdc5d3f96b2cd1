"""Which bugs may be one of several, where the first tokens of a piece are right.

What moves these would have to be undone there, to the noise, by another bug of the set.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import Atom
from lockstep.parity.explaining.searching.look import over
from lockstep.parity.explaining.searching.seen import Seen

ENOUGH = 8  # tokens: fewer may show too little of a bug
NOTHING: Atoms = frozenset()


def leaving_right(search: Seen, atoms: Sequence[Atom]) -> list[Atom]:
    """Return the bugs that leave right tokens as they are, if enough of the first ones are right.

    Behind a router, or where tokens prove nothing, none is known to be right.
    """
    known = not search.routed and search.piece.target not in search.trial.unseen
    count = right_tokens(search) if known else 0
    if count < ENOUGH:
        return [*atoms]
    return [atom for atom in atoms if search.effect(atom, 0, count) <= search.close]


def right_tokens(search: Seen) -> int:
    """Return how many tokens are right before the first that is not."""
    found = search.look(NOTHING, None)
    if found is None:
        return 0
    pairs = zip(found.port, found.right, strict=True)
    wrong = [over(error, size, found.noise) > search.close for error, size in pairs]
    return int(np.argmax(wrong)) if any(wrong) else len(wrong)
