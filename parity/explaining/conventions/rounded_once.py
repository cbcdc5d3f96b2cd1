"""A port that computed in float32 and rounded nothing but its logits, of which only they are known.

All values that its dump has are of half precision then, as those of a port that computes in it. But
that one rounds a thousand times on the way: its bits are seldom those of the exact result, rounded.
"""

from __future__ import annotations

import numpy as np

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.reference.precision import dtype_named, rounded

WIDE = "float32"
FAITHFUL = 0.98  # of the port's bits that one rounding must give


def rounded_once(case: Case) -> bool:
    """Say whether all values of a dump in half precision are exact ones, rounded once.

    It is asked of pieces of several layers alone: what is rounded once on its way tells nothing.
    Tokens that prove nothing have no say.
    """
    pieces = case.graph.pieces(case.dumped)
    if case.trial.dtype.itemsize > 2 or not pieces or not all(map(case.graph.several, pieces)):
        return False
    wide = in_float32(case)
    with np.errstate(all="ignore"):  # a broken port may hold anything
        exact = [rounded(wide.centre(None).target(one.target), case.trial.dtype) for one in pieces]
    same = [
        case.trial.proving(value == wide.port(one.target), one.target).ravel()
        for value, one in zip(exact, pieces, strict=True)
    ]
    every = np.concatenate(same)
    return bool(every.size) and float(np.mean(every)) >= FAITHFUL


def in_float32(case: Case) -> Trial:
    """Return the same dump as one of a port in float32."""
    return Trial(case.graph, case.trial.ops, dtype_named(WIDE), case.dumped, case.read)
