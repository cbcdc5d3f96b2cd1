"""Explain what no known bug does by a number that has another value in the port."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lockstep.parity.explaining.fitting.fit import Fit
from lockstep.parity.explaining.other_weights import has_weights, is_adapted
from lockstep.parity.explaining.searching.hypothesis import Hypothesis, atoms_in, hypotheses
from lockstep.parity.explaining.searching.price import most_computations
from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.number import Number
from lockstep.parity.faults.numbers import NUMBERS
from lockstep.parity.graph.graph import Piece

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

GROUPS = 12  # of calls, of which each may have a value of its own
SHARE = 1 / 6  # of the computations of a search, for all numbers of a piece
MOST_VALUES = 2  # of one number
Progress = Callable[[str], None]
Values = defaultdict[tuple[str, float], set[float]]  # of each number, by its right value


def fit_numbers(case: Case, progress: Progress) -> Values:
    """Fit the numbers of each piece that is open, and explain all such pieces by what fits.

    Where most matrices seem to be none of the checkpoint's, adapters may do that: no others are
    looked at. What is open is searched once more where that is settled, and where a fitted number
    may hide what else is wrong. Return the values that were found.
    """
    strange = case.of_other_weights()
    values: Values = defaultdict(set)
    every: list[Hypothesis] = []

    def fit(piece: Piece) -> bool:
        found = [*fitted(case, piece, values)]
        if found:
            explain_again(case, found)
            every.extend(found)
        return bool(found)

    some = [one for one in case.open if not strange or is_adapted(one, case.graph)]
    try_each(case, some, fit, progress)
    if (strange and not case.of_other_weights()) or hides(every, case):
        case.search(progress)
    return values


def try_each(
    case: Case, pieces: Sequence[Piece], fit: Callable[[Piece], bool], progress: Progress
) -> None:
    """Fit something to each piece that is open by then; of like pieces in vain some are enough."""
    in_vain: Counter[tuple[str, ...]] = Counter()
    for piece in [*pieces]:
        kind = case.graph.kind(piece)
        if all(piece is not one for one in case.open) or in_vain[kind] > case.patience(piece):
            continue
        in_vain[kind] += not fit(piece)
        progress(case.tap(piece))


def fitted(case: Case, piece: Piece, values: Values) -> Iterator[Hypothesis]:
    """Yield the bugs that are one number of another value, and leave nothing but noise.

    A number has few `values` in all pieces: no port has one of its own in each layer.
    """
    last = case.trial.count + round(SHARE * most_computations(case.trial, piece))
    for fault, number in numbers_of(case):
        for calls in groups(case, piece, fault, number):
            fit = Fit(case.trial, piece, number, calls, last, fault.acausal)
            value, others = fit.value(), values[number.form, fit.right]
            if value is None or is_right_elsewhere(case, fit, value):
                continue
            if value in others or len(others) < MOST_VALUES:
                others.add(value)
                yield from of_value(case, fault, number, fit, value)
            break


def numbers_of(case: Case) -> list[tuple[Fault, Number]]:
    """Return the numbers that may have another value, each with the bug that this is; those of few
    values first.
    """
    every = [(fault, one) for id, fault in case.faults.items() for one in NUMBERS.get(id, ())]
    return sorted(every, key=lambda one: not one[1].is_quick)


def hides(more: list[Hypothesis], case: Case) -> bool:
    """Say whether a number that explains some piece takes part in one that is open."""
    named = {*more} & {*case.bugs()}
    return any(not one.calls.isdisjoint(piece.calls) for one in named for piece in case.open)


def is_right_elsewhere(case: Case, fit: Fit, value: float) -> bool:
    """Say whether a like piece has the right value, where weights could be wrong as well.

    A constant of the model is wrong in every layer; a weight, whose size may do the same, in one.
    A bound that there is not may be reached in one layer alone: the others say nothing then.
    """
    graph, kind = case.graph, case.graph.kind(fit.piece)
    if not has_weights(fit.piece, graph):
        return False
    for one in (one for one in case.right if graph.kind(one) == kind):
        rights = {number: fit.number.right(graph.calls[number], graph) for number in one.calls}
        calls = frozenset(number for number, right in rights.items() if right == fit.right)
        if calls and (math.isfinite(fit.right) or fit.spoils(one, calls, value)):
            return True
    return False


def groups(case: Case, piece: Piece, fault: Fault, number: Number) -> list[frozenset[int]]:
    """Return calls of a piece that may have another value together: all first, then of a part.

    They are right with the same value.
    """
    graph = case.graph
    every = hypotheses([replace(fault, variants={"": number.other})], graph)
    found: dict[frozenset[int], None] = {}
    for atom in (atom for one in every for atom in atoms_in(one, piece.calls, (), graph)):
        rights = {one: number.right(graph.calls[one], graph) for one in atom.calls}
        for value in dict.fromkeys(rights.values()):
            found[frozenset(one for one in rights if rights[one] == value)] = None
    return [*found][:GROUPS]


def of_value(case: Case, fault: Fault, number: Number, fit: Fit, value: float) -> list[Hypothesis]:
    """Return the bug that has this value wherever the right one is the same."""
    wrong = replace(fault, variants={number.said(value, fit.right): fit.becomes(value)})
    order = [*case.faults].index(fault.id)
    return [replace(one, order=order) for one in hypotheses([wrong], case.graph)]


def explain_again(case: Case, more: list[Hypothesis]) -> None:
    """Explain what is open once more, with some bugs besides; forget them if they do not."""
    case.hypotheses = [*case.hypotheses, *more]
    case.atoms.clear()
    ask_again(case)
    if {*more}.isdisjoint(case.bugs()):
        case.forget(more)


def ask_again(case: Case) -> None:
    """Explain what is open by what is known by now."""
    known = Counter(case.bugs())
    waiting, case.open = case.open, []
    for piece in waiting:
        case.explain(piece, known, deep=False)
