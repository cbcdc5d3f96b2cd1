"""Bugs of rounding that do nothing in a port's own dtype: it rounds there anyway.

A sum that is rounded to float16 is a bug of a port that computes in float32; in float16 every sum
is. The replay in float64 comes nearer to such a port with the bug, since that rounds as the port
does, and so it would pass for a reason. It is one only where it makes what is no number.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.searching.hypothesis import Atom, rewritten
from lockstep.parity.graph.refusals import if_computable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lockstep.parity.explaining.searching.trial import Trial
    from lockstep.parity.graph.graph import Piece

FINE = 2  # bytes of a number: a dtype of more is finer than what rounds coarsely


def but_rounded_anyway(atoms: Iterable[Atom], piece: Piece, trial: Trial) -> Iterator[Atom]:
    """Yield the bugs of a piece without those, each judged where it acts most.

    In float32 there are none: it rounds finer than any of them.
    """
    if trial.dtype.itemsize > FINE:
        yield from atoms
        return
    for hypothesis, some in groupby(atoms, attrgetter("hypothesis")):
        group = [*some]
        most = max(group, key=lambda atom: len(atom.calls))
        if not (hypothesis.fault.coarse and is_rounded_anyway(most, piece, trial)):
            yield from group


@np.errstate(all="ignore")  # a broken port may hold anything
def is_rounded_anyway(atom: Atom, piece: Piece, trial: Trial) -> bool:
    """Say whether a bug turns no bit of some legal way to compute a piece of finite numbers."""
    calls = rewritten([atom], trial.graph)
    here = not atom.calls.isdisjoint(piece.calls)
    if not calls or not here or not trial.finite(piece.target):
        return False
    for way in trial.ways(None):
        trial.count += 1
        with if_computable():
            if np.array_equal(way.target(piece.target), way.target(piece.target, calls)):
                return True
            continue
        return False
    return False
