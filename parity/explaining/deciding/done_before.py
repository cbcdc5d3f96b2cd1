"""Operations that are left out right behind a value that nobody explains.

Queries that were turned before their norm are wrong behind the norm, and not turned there. Who does
not know that order sees norms without a name, and a rope that is missing; but it is not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.searching.hypothesis import Atom, rewritten
from lockstep.parity.explaining.searching.look import over
from lockstep.parity.graph import Call, Value
from lockstep.parity.graph.graph import Piece

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.explaining.deciding.verdict import Chosen, Key

CLOSE = 3  # times what all tokens may leave, of a few of them: their noise is uncertain


def withdraw_done_before(chosen: dict[Key, Chosen], case: Case) -> None:
    """Take out what may have been done before a value that has no explanation, wherever it is
    missing. The pieces that it explained are open then, so no other bug is found there either.
    """
    taken = {
        key: bug.pieces for key, bug in chosen.items()
        if case.open and all(map(partial(done_before, case=case), bug.atoms, bug.pieces))
    }  # fmt: skip
    for key, pieces in taken.items():
        del chosen[key]
        case.open += [piece for piece in pieces if piece not in case.open]
    if taken:
        left = {key: bug.but_in(case.open) for key, bug in chosen.items()}
        chosen.clear()
        chosen.update({key: bug for key, bug in left.items() if bug.pieces})
    case.explained = [entry for entry in case.explained if entry[0] not in case.open]


def done_before(atom: Atom, piece: Piece, case: Case) -> bool:
    """Say whether a bug leaves out operations alone, each on open values of its own layer.

    What another bug brings into the piece is none of its operations, and is not left out.
    """
    calls = rewritten([atom], case.graph) or {}
    here = atom.calls & frozenset(piece.calls)
    return (
        bool(here) and calls.keys() >= here and all(moved_before(calls[one], case) for one in here)
    )


def moved_before(wrong: Call, case: Case) -> bool:
    """Say whether a call that does nothing, number by number, may have been done before the dumped
    values that it works on.

    They are open then, and right where it changes nothing anyway, as a turn at position 0. What
    changes every token is looked for in them.
    """
    number, ref = wrong.number, case.graph.calls[wrong.number].inputs[0]
    if not isinstance(ref, Value):
        return False
    run = case.trial.centre(None)
    with np.errstate(all="ignore"):  # a broken port may hold anything
        before = run.given(ref.number)
        right, after = run.right(number), run.target(number, {number: wrong})
    if not np.array_equal(before, after, equal_nan=True):
        return False
    same = (case.trial.tokens(one, number) for one in (before, right))
    idle = np.asarray(np.equal(*same).all(axis=-1))
    ends = dumped_behind(ref.number, case)
    if not ends or not all(is_open(one, wrong.layer, idle, case) for one in ends):
        return False
    return bool(idle.any()) or is_in(before, number, ref.number, case)


@np.errstate(all="ignore")
def is_in(before: np.ndarray, number: int, source: int, case: Case) -> bool:
    """Say whether a call takes what should come of it, rather than what it should take."""
    right = {one: case.trial.centre(None).right(one) for one in dumped_behind(source, case)}
    meant = case.trial.over(right).centre(None)
    done, taken = (np.square(before - meant.right(one)).sum() for one in (number, source))
    return bool(done < taken)


def dumped_behind(number: int, case: Case) -> set[int]:
    """Return the dumped values that a value is made of, or itself."""
    dumped = case.dumped.keys()
    if number in dumped:
        return {number}
    made = case.graph.needed([number], dumped)
    return set().union(*map(case.graph.sources, made)) & dumped


def is_open(number: int, layer: int | None, idle: np.ndarray, case: Case) -> bool:
    """Say whether a value of a layer has no explanation, and is right in `idle` tokens."""
    piece = next((one for one in case.open if one.target == number), None)
    if piece is None or case.graph.calls[number].layer != layer:
        return False
    look = case.trial.look(piece, {})
    if len(look.port) != len(idle):
        return False
    left = over(look.port[idle].sum(), look.wrong[idle].sum(), look.noise)
    return left <= CLOSE * case.trial.limit
