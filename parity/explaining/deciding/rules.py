"""A bug that says how all layers are counted is in all of them, or in none.

Where an adapter is moved out of the model, its layer has none. So has a layer whose adapter was
lost, and that the others have theirs moved is not shown by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.parity.explaining.deciding.contradiction import contradictions
from lockstep.parity.explaining.deciding.kept import keep_if
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.hypothesis import Hypothesis
from lockstep.parity.graph.graph import Piece

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case


def give_up_rules(case: Case, random: Sequence[Piece]) -> None:
    """Take out the rules that do not hold in as many pieces as they do, and what they explain.

    Pieces that were read as `random` numbers are among those in which a rule does not hold.
    """
    given_up = {one for one in rules(case) if is_refuted(one, case, random)}
    case.forget(given_up)
    keep_if(case, lambda piece, one: not uses(one, given_up))


def rules(case: Case) -> set[Hypothesis]:
    atoms = (atom for _, some in case.explained for one in some for atom in one.atoms)
    return {atom.hypothesis for atom in atoms if atom.hypothesis.throughout}


def is_refuted(rule: Hypothesis, case: Case, random: Sequence[Piece]) -> bool:
    """Say whether a rule changes as many pieces that are right or need another explanation, as it
    explains.
    """
    holds = [any(uses(one, {rule}) for one in some) for _, some in case.explained]
    others = [piece for (piece, _), held in zip(case.explained, holds, strict=True) if not held]
    asked = [*others, *case.open, *random, *case.right]
    against = contradictions(rule, case.trial, asked, sum(holds))
    return len(against) >= sum(holds)


def uses(one: Explanation, some: set[Hypothesis]) -> bool:
    return any(atom.hypothesis in some for atom in one.atoms)
