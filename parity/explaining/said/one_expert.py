"""Whether an error is in the tokens of one expert: it was not run, or has other weights."""

from __future__ import annotations

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph import Value
from lockstep.parity.graph.call import EXPERTS
from lockstep.parity.graph.graph import Piece

SAID = "one expert: all {count} tokens that chose expert {expert} are wrong, and no other"
ALONE = "one expert: the one token that chose expert {expert} is wrong, and no other"
ROUTING = 1  # where an operation of experts has who chose whom, (B, L, E)


def one_expert(trial: Trial, piece: Piece, wrong: np.ndarray) -> str | None:
    """Say which expert all `wrong` tokens (T,) chose, if no other token did."""
    every = (trial.graph.calls[number] for number in piece.calls)
    experts = [call for call in every if call.op in EXPERTS]
    if len(experts) != 1 or not isinstance(routing := experts[0].inputs[ROUTING], Value):
        return None
    chosen = trial.centre(None).target(routing.number) != 0
    if chosen.shape[0] != 1 or chosen.shape[1] != len(wrong):
        return None
    alike = np.flatnonzero((chosen[0] == wrong[:, None]).all(axis=0))
    if len(alike) != 1 or wrong.all():
        return None
    count = np.count_nonzero(wrong)
    return (SAID if count > 1 else ALONE).format(count=count, expert=int(alike[0]))
