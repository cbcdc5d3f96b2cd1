"""Bugs of one call that together hand its input on: it was left out, and not wrong in many ways.

A norm without its root, applied twice, with gains of 1, returns what goes in. So where no entry of
the catalogue leaves a call out, several others might pass for that.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.deciding.kept import keep_if
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import rewritten
from lockstep.parity.graph import Value
from lockstep.parity.graph.refusals import if_computable
from lockstep.parity.judging.judge import EPSILONS
from lockstep.parity.judging.metrics import rms

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

NEAR = 1e-3  # of a value, within which it is its input: an epsilon may be between them


def withdraw_handed_on(case: Case) -> None:
    """Give up what explains a piece by several bugs that only together leave a call out."""
    keep_if(case, lambda piece, one: not any(is_left_out(n, one, case) for n in of_many(one)))


def of_many(one: Explanation) -> list[int]:
    """Return the calls that several bugs of an explanation change."""
    counted = Counter(number for atom in one.atoms for number in atom.calls)
    return [number for number, count in counted.items() if count > 1]


def is_left_out(number: int, one: Explanation, case: Case) -> bool:
    """Say whether a call returns its first input by all of its bugs, and by none alone."""
    here = [atom for atom in one.atoms if number in atom.calls]
    alone = (is_its_input(number, frozenset([atom]), case) for atom in here)
    return is_its_input(number, one.atoms, case) and not any(alone)


@np.errstate(all="ignore")  # what a broken port dumps may overflow anywhere
def is_its_input(number: int, atoms: Atoms, case: Case) -> bool:
    first, run = case.graph.calls[number].inputs[0], case.trial.centre(None)
    calls = rewritten(atoms, case.graph)
    if not isinstance(first, Value) or calls is None:
        return False
    near = max(NEAR, EPSILONS[case.trial.dtype.name])  # and roundings of what was made between
    with if_computable():
        given, made = run.given(first.number, calls), run.target(number, calls)
        return given.shape == made.shape and bool(rms(made - given) <= near * rms(given))
    return False
