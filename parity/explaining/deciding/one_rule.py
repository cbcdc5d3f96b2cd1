"""Bugs that say another rule for all layers: a port has one of them at most.

Which layers slide is said once for a whole model. If no single wrong rule explains all layers that
see too much or too little, then what fits each of them by itself is not what the port has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lockstep.parity.explaining.deciding.contradiction import MOST_BESIDE, Beside, contradictions
from lockstep.parity.explaining.deciding.kept import keep_if
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.atom_sets import Atoms, widest
from lockstep.parity.explaining.searching.hypothesis import Hypothesis, in_order
from lockstep.parity.graph.graph import Piece

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case


def keep_one_rule(case: Case) -> None:
    """Take out the bugs of a rule that do not explain all that needs one, and what they explain.

    Of those that do, the ones stay that spoil least of all other pieces.
    """
    for rule in sorted({one.fault.rule for one in case.hypotheses} - {""}):
        needing = [entry for entry in case.explained if all(said(one, rule) for one in entry[1])]
        known = dict.fromkeys(bug for _, some in needing for one in some for bug in said(one, rule))
        if not known:
            continue
        for piece, some in needing if len(needing) > 1 else ():
            some += [*in_its_place(case, piece, some, rule, [*known])]
        left = [one for one in known if all(explains(one, some, rule) for _, some in needing)]
        against = {one: spoils(one, case) for one in left}
        least = min(against.values(), default=0)
        give_up(case, rule, {one for one in left if against[one] == least})


def said(one: Explanation, rule: str) -> list[Hypothesis]:
    """Return the bugs of an explanation that say a rule."""
    bugs = {bug for bug in one.bugs if bug.fault.rule == rule}
    return sorted(bugs, key=lambda bug: bug.rank)


def but_for(rule: str, one: Explanation) -> Atoms:
    return frozenset(atom for atom in one.atoms if atom.hypothesis.fault.rule != rule)


def explains(bug: Hypothesis, some: Sequence[Explanation], rule: str) -> bool:
    return any(said(one, rule) == [bug] for one in some)


def in_its_place(
    case: Case, piece: Piece, some: Sequence[Explanation], rule: str, known: Sequence[Hypothesis]
) -> Iterator[Explanation]:
    """Yield what explains a piece with another bug of the rule, which its search did not try; put
    the piece with the right ones if it turns out to be right.

    What fits as well as another bug does so beside this one too, so that like pieces can agree.
    """
    search = case.search_over(piece)
    rests = dict.fromkeys(but_for(rule, one) for one in some)
    for bug in known:
        here = [atom for atom in search.atoms if atom.hypothesis == bug]
        for rest in rests if not explains(bug, some, rule) else ():
            sets = widest([*in_order(rest), *here])
            if sets and search.settles(sets[0]):
                yield from search.explained_by(sets[:1])
    if search.cleared is not None:
        case.clear(piece, search.cleared)


def spoils(bug: Hypothesis, case: Case) -> int:
    """Count the pieces that a rule would make wrong: right ones, and those explained without it."""
    beside = Beside(case.trial, case.right)
    right = len(contradictions(bug, case.trial, case.right, MOST_BESIDE))
    others = sum(beside.spoilt(bug, piece, some) for piece, some in case.explained)
    return min(right + others, MOST_BESIDE)


def give_up(case: Case, rule: str, kept: set[Hypothesis]) -> None:
    """Think of a rule's other bugs no more, nor of what they explain."""
    case.forget({one for one in case.hypotheses if one.fault.rule == rule} - kept)
    keep_if(case, lambda piece, one: kept.issuperset(said(one, rule)))
