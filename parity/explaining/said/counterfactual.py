"""What the logits would be with each bug fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.parity.explaining.deciding.verdict import Chosen, Key
from lockstep.parity.explaining.searching.hypothesis import Atom, rewritten
from lockstep.parity.graph.evaluator import Rewritten
from lockstep.parity.graph.side_by_side import Row
from lockstep.parity.judging.metrics import difference, rms

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

HARDLY, CLEARLY = 0.5, 0.05  # of the error as it is, and of the logits: more than rounding leaves
NOT_ALL = (
    "with all that is named fixed, the logits would be off by {after:.3g} of their size, and "
    "are by {before:.3g}: what is named is not all that is wrong, or not what it is called"
)
Fix = tuple[list[str], Rewritten]  # what is fixed, and the calls that bugs rewrite all the same


def fixes(chosen: Mapping[Key, Chosen], case: Case) -> list[Fix]:
    """Return what is asked of the reference: all bugs planted, then all but each of them.

    The first stands for all that are fixed: it says what they account for.
    """
    bugs = {key: [Atom(bug.hypothesis, bug.calls)] for key, bug in chosen.items()}

    def planted(left: Mapping[Key, list[Atom]]) -> Rewritten:
        return rewritten([atom for atoms in left.values() for atom in atoms], case.graph) or {}

    found = [(sorted({key[0] for key in bugs}), planted(bugs))] if bugs else []
    for key in bugs if len(bugs) > 1 else ():
        found.append(([key[0]], planted({one: bugs[one] for one in bugs if one != key})))
    return found


def counterfactuals(some: Sequence[Fix], logits: Row, case: Case) -> list[dict[str, Any]]:
    """Return the error of the logits as they are, with each bug fixed alone, and with all fixed.

    `logits` are the right ones, then what is left by each of these fixes. An error is a root mean
    square, relative to that of the right logits, over the tokens that the port computed: not those
    that fill up a row of a batch. With all fixed, what remains is what the named bugs do not
    account for.
    """
    right, predicted, *others = logits
    actual = case.dumped.get(case.graph.taps["logits"], predicted)
    unseen = case.trial.unseen.get(case.graph.taps["logits"])
    seen = np.s_[:] if unseen is None else ~np.broadcast_to(unseen, right.shape[:2])

    def error(found: np.ndarray, truth: np.ndarray) -> float:
        with np.errstate(all="ignore"):
            return rms(difference(found[seen], truth[seen])) / (rms(right[seen]) or 1.0)

    (every, _), *each = some
    rows = [{"fixed": [], "logits_error": error(actual, right)}]
    for (fixed, _), found in zip(each, others, strict=True):
        rows.append({"fixed": fixed, "logits_error": error(found, right)})
    return [*rows, {"fixed": every, "logits_error": error(actual, predicted)}]


def not_accounted_for(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line if the logits are wrong, and would hardly be less so with all bugs fixed."""
    if not rows:
        return []
    before, after = (rows[place]["logits_error"] for place in (0, -1))
    if not after > max(HARDLY * before, CLEARLY):
        return []
    return [NOT_ALL.format(after=after, before=before)]
