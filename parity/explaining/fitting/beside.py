"""Explain what nothing alone does by a known bug and a number of the same operation.

Two that are fitted together may do what neither has. So the first tokens and all tokens must agree,
another pair with another value must not do as well, and like pieces must not speak against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.parity.explaining.deciding.contradiction import Beside
from lockstep.parity.explaining.deciding.poor import BARELY
from lockstep.parity.explaining.deciding.rules import uses
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.fitting.fit import EARLY, Fit
from lockstep.parity.explaining.fitting.fitted import (
    MOST_VALUES,
    Progress,
    Values,
    ask_again,
    groups,
    numbers_of,
    of_value,
    try_each,
)
from lockstep.parity.explaining.fitting.paired import Paired, paired
from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import Atom, Hypothesis
from lockstep.parity.explaining.searching.known import as_taught
from lockstep.parity.explaining.searching.price import most_computations
from lockstep.parity.explaining.searching.siblings import with_siblings
from lockstep.parity.faults.fault import Fault
from lockstep.parity.graph.graph import Piece

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

Found = tuple[Fault, Paired, float]
SHARE = 1 / 4  # of the computations of a search, for all numbers beside known bugs of a piece
HALF = 2  # bytes of a dtype whose few digits many pairs may give


def fit_beside(case: Case, values: Values, progress: Progress) -> None:
    """Fit the numbers of each piece that is still open beside known bugs of their operations."""

    def fit(piece: Piece) -> bool:
        found = fitted_beside(case, piece, values)
        return bool(found) and explained_with_number(case, piece, found, values)

    if not case.of_other_weights():
        try_each(case, case.open, fit, progress)


def fitted_beside(case: Case, piece: Piece, values: Values) -> list[Found]:
    """Return the one number and its value that leaves nothing of a piece but noise, with each of
    the bugs beside which it does.

    None are, if two such numbers or values differ: nothing says which the port has. Nor where in
    few digits the piece is barely wrong.
    """
    trial = case.trial
    few_digits = trial.dtype.itemsize <= HALF
    if trial.blind(piece.target) or (few_digits and case.judged[piece.target].ratio <= BARELY):
        return []
    last = trial.count + round(SHARE * most_computations(trial, piece))
    some = [
        (fault, Fit(trial, piece, number, calls, last))
        for fault, number in numbers_of(case) if not (number.is_factor or number.is_alone)
        for calls in groups(case, piece, fault, number)
    ]  # fmt: skip
    found = [*paired(case, piece, [one for one in some if one[1].length > EARLY])]
    if len({(one.number.form, one.right, value) for _, one, value in found}) != 1:
        return []
    if trial.count >= last and few_digits:
        return []  # what was not tried may do as well
    _, one, value = found[0]
    had = values[one.number.form, one.right]
    return found if value in had or len(had) < MOST_VALUES else []


def explained_with_number(case: Case, piece: Piece, found: list[Found], values: Values) -> bool:
    """Explain a piece by a bug and a number, and others by what is known then.

    All of it is forgotten if like pieces speak against the number.
    """
    before = [(other, [*some]) for other, some in case.explained]
    fault, one, value = found[0]
    number = next(iter(of_value(case, fault, one.number, one, value)), None)
    if number is None or is_contradicted(case, one, number, value):
        return False
    new = [] if number in case.hypotheses else [number]
    case.hypotheses = [*case.hypotheses, *new]
    case.atoms.clear()
    sets = [frozenset([fit.bug, Atom(number, fit.calls)]) for _, fit, _ in found]
    if not explained_by_both(case, piece, sets) or not is_agreed(case, piece, number):
        withdraw(case, before)
        case.forget(new)
        return False
    values[one.number.form, one.right].add(value)
    return True


def explained_by_both(case: Case, piece: Piece, sets: list[Atoms]) -> bool:
    """Explain a piece by sets of two of which neither does alone, and by their like; then others
    by what is known.
    """
    search = case.search_over(piece)
    search.budget.begin()
    found = [some for some in as_taught(search, sets) if some in sets]
    every = with_siblings(search, found, search.visible(search.atoms)) if found else []
    if found or search.cleared is not None:
        case.open = [other for other in case.open if other is not piece]
    if search.cleared is not None:
        case.clear(piece, search.cleared)
        return False
    if found:
        case.explained.append((piece, search.explained_by(every, complete=not search.spent)))
        ask_again(case)
    return bool(found)


def is_contradicted(case: Case, fit: Paired, number: Hypothesis, value: float) -> bool:
    """Say whether a like piece, right or explained without the number, would be wrong with it."""
    kind = case.graph.kind
    right = (one for one in case.right if kind(one) == kind(fit.piece))
    there = ((one, number.calls & frozenset(one.calls)) for one in right)
    if any(calls and fit.spoils(one, calls, value) for one, calls in there):
        return True
    beside = Beside(case.trial, case.right)
    like = ((one, some) for one, some in case.explained if kind(one) == kind(fit.piece))
    return any(beside.spoilt(number, one, some) for one, some in like)


def is_agreed(case: Case, piece: Piece, number: Hypothesis) -> bool:
    """Say whether a like piece has the number too.

    Where none is wrong, any other piece has to; in many digits a piece without its like is enough.
    """
    graph = case.graph
    others = [(one, some) for one, some in case.explained if one is not piece]
    having = [one for one, some in others if any(uses(each, {number}) for each in some)]
    pieces = (one for one in (*case.open, *having) if graph.kind(one) == graph.kind(piece))
    like = [one for one in pieces if number.calls & frozenset(one.calls)]
    if like:
        return any(one is other for one in like for other in having)
    return bool(having) or case.trial.dtype.itemsize > HALF


def withdraw(case: Case, before: list[tuple[Piece, list[Explanation]]]) -> None:
    """Open again what was not explained before; what turned out to be right stays so."""
    right = {piece.target for piece in case.right}
    kept = [(piece, some) for piece, some in before if piece.target not in right]
    known = {piece.target for piece, _ in kept}
    every = [*case.open, *(piece for piece, _ in case.explained)]
    case.open = [piece for piece in every if piece.target not in known]
    case.explained = kept
