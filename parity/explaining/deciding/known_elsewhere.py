"""What explains more pieces by itself is asked of others too, before they get a bug of their own.

A number is fitted after most pieces were searched. By then another bug, which nearly does the same,
may have been found for one of them: an `eps` under the root or outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lockstep.parity.explaining.deciding.votes import atoms
from lockstep.parity.explaining.explanation import Explanation
from lockstep.parity.explaining.searching.atom_sets import Atoms
from lockstep.parity.explaining.searching.hypothesis import Hypothesis, rewritten
from lockstep.parity.explaining.searching.look import FAR

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case
    from lockstep.parity.graph.graph import Piece


def offer_known(case: Case) -> None:
    """Add to what explains a piece the bugs that explain more pieces, if they leave no more; and
    explain by them what is open again, since what explained it did not hold.
    """
    count = counted(case)
    known = [bug for bug, pieces in count.items() if pieces > 1]
    for piece, some in case.explained:
        own = max(count[bug] for one in some for bug in one.bugs)
        most = min(distance(one.atoms, piece, case) for one in some)
        more = [bug for bug in known if count[bug] > own]
        some += explaining(more, piece, most, case)
    for piece in [*case.open]:
        if found := [*explaining(known, piece, FAR, case)]:
            case.open.remove(piece)
            case.explained.append((piece, found))


def counted(case: Case) -> Counter[Hypothesis]:
    """Count the pieces that each bug explains by itself."""
    alone = ({one.bugs: None for one in some if len(one.bugs) == 1} for _, some in case.explained)
    return Counter(bug for bugs in alone for one in bugs for bug in one)


def explaining(
    some: Iterable[Hypothesis], piece: Piece, most: float, case: Case
) -> Iterator[Explanation]:
    """Yield a piece's explanations by the bugs that pass, and leave so much of it at most."""
    for one in some:
        here = frozenset(atoms(one, piece))
        near = here and distance(here, piece, case) <= most
        if near and case.search_over(piece).earned(here):
            found = explained_by(one, piece, case)
            if found.judgement.passed:
                yield found


def explained_by(one: Hypothesis, piece: Piece, case: Case) -> Explanation:
    """Return a piece's explanation by one bug, wherever it acts in it."""
    here = frozenset(atoms(one, piece))
    return Explanation(here, case.trial.judge(piece, rewritten(here, case.graph)), complete=True)


def distance(some: Atoms, piece: Piece, case: Case) -> float:
    """Return how far a piece is from what bugs make of it, squared; FAR if that is as it was."""
    calls = rewritten(some, case.graph)
    return float(case.trial.look(piece, calls).port.sum()) if calls else FAR
