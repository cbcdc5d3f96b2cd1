"""Scores that are dumped with the mask on them: keys that must not be seen have -inf there, or some
number that is as low. A convention: the softmax leaves them out either way.

They are taken as they should be, so a bug of the scores themselves is seen in the others alone, and
has no name then.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.faults.mask import MASK
from lockstep.parity.graph import Value
from lockstep.parity.graph.graph import Call

LOW = -1e4  # no score of a right port is as low
SAID = "{count} taps of scores have the mask on them, such as {tap}: what it hides is not judged"


def read_masked(trial: Trial) -> Iterator[str]:
    """Put what they should be in the place of scores that the mask hides; yield a line for all."""
    found = [call for call in trial.graph.calls if hide(trial, call)]
    if found:
        trial.forget()
        yield SAID.format(count=len(found), tap=found[0].taps[0])


def hide(trial: Trial, call: Call) -> bool:
    """Do so with one call, if what is hidden is low there, and nothing else is; say whether."""
    if call.op != "attention_scores" or call.number not in trial.dumped:
        return False
    port, run = trial.dumped[call.number], trial.centre(None)
    hidden = hidden_from(trial, call, port.shape)
    if hidden is None or not hidden.any() or (port > LOW)[hidden].any():
        return False
    if not (np.isfinite(port) & (port > LOW))[~hidden].all():
        return False
    read = np.where(hidden, run.target(call.number).astype(port.dtype), port)
    for one in (trial.dumped, *trial.own):
        one[call.number] = read
    return True


def hidden_from(trial: Trial, call: Call, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return what the softmax of these scores leaves out (B, H, L, S); None if there is none."""
    graph = trial.graph
    takers = (graph.calls[one] for one in graph.consumers[call.number])
    softmax = next((one for one in takers if one.op == "softmax"), None)
    mask = None if softmax is None else softmax.inputs[MASK]
    if not isinstance(mask, Value):
        return None
    return np.broadcast_to(~trial.centre(None).target(mask.number), shape)
