"""Whether each bug of a set brings the port nearer.

What is computed in another way rounds in another way too. So a set that only just does not pass may
pass with any bug more, be it one that makes noise, or two that undo each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np

from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import in_order
from lockstep.parity.explaining.searching.look import Look

LESS = 0.95  # of the error without some bugs, that they must leave less than
HALF = 0.5  # the same of the square of the token that was the farthest


def earned(atoms: Atoms, look: Callable[[Atoms], Look | None], given: Atoms = frozenset()) -> bool:
    """Say whether every bug of a set, and every two of them, leave less than the others alone.

    Those that are `given` need not: there is another reason for them.
    """
    found = look(atoms)
    left_out = (look(rest) for rest in parts(atoms) if not atoms - rest <= given)
    return found is not None and all(rest is None or nearer(found, rest) for rest in left_out)


def parts(atoms: Atoms) -> Iterator[Atoms]:
    for size in (1, 2):
        for some in combinations(in_order(atoms), size):
            yield atoms - {*some}


def nearer(found: Look, other: Look) -> bool:
    """Say whether the port is nearer to one hypothesis than to another: over all, or where it was
    the farthest and no farther over all. Where a router turned single tokens these say nothing. One
    that makes what is no number in the port is nearer than one that does not.
    """
    if found.made != other.made:
        return found.made > other.made
    left, had = found.raw(0, None), other.raw(0, None)
    if left < LESS * had:
        return True
    worst = int(np.argmax(other.port))
    at_worst = bool(found.port[worst] < HALF * other.port[worst])
    return other.careful and left <= had and at_worst
