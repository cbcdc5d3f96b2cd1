"""Names that the logits speak against: they are right, and would not be with these bugs.

Then the port never went on from what was wrong. Two tensors that were dumped under each other's
names look so, and a buffer that was written over before it was kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.parity.explaining.deciding.verdict import Chosen, Key
from lockstep.parity.explaining.said.diagnosis import Diagnosis

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

LOGITS = "logits"
SEVERAL = 50  # times the noise of the last operation, that a right run of all of them is off by
FARTHER = 20  # times as far as they are, that the logits would be with the bugs
SAID = (
    "the logits are right, and would be off by {predicted:.3g} of their size with {ids}: the port "
    "did not go on from what is wrong here. Were two tensors dumped under each other's names, or "
    "kept without a copy?"
)


def withdraw_refuted(chosen: dict[Key, Chosen], case: Case, result: Diagnosis) -> bool:
    """Take all names back if the logits are right without them alone; say so, and whether."""
    last = case.graph.taps[LOGITS]
    logits = next((tap for tap in result.taps if case.graph.taps[tap.name] == last), None)
    if logits is None or not is_refuted(result.counterfactual, logits.noise or 0.0):
        return False
    ids = ", ".join(sorted({key[0] for key in chosen}))
    predicted = result.counterfactual[-1]["logits_error"]
    result.conventions.append(SAID.format(predicted=predicted, ids=ids))
    result.counterfactual = []
    pieces = [piece for bug in chosen.values() for piece in bug.pieces]
    case.open += [piece for piece in dict.fromkeys(pieces) if piece not in case.open]
    chosen.clear()
    return True


def is_refuted(fixes: Sequence[Mapping[str, Any]], noise: float) -> bool:
    """Say whether the logits are as those of the reference, and not as with the bugs in it.

    `fixes` are the errors of the logits with nothing fixed, and at last with all that is named.
    """
    if not fixes:
        return False
    actual, predicted = (fixes[at]["logits_error"] for at in (0, -1))
    return bool(actual <= SEVERAL * noise and predicted > FARTHER * actual)
