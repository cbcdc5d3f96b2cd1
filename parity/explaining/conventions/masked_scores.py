"""Scores that are dumped with the mask on them: keys that must not be seen have -inf there, or some
number that is as low. A convention: the softmax leaves them out either way.

They are taken as they should be, times the factor of all others if these have one. So a bug of the
scores themselves that is no factor is seen in the others alone, and has no name then.

Any other number may stand there too: 0, or what was in the buffer. It is not judged if all other
scores are right, and so is what was made of them next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from lockstep.parity.explaining.conventions.readings import (
    LITTLE,
    Values,
    factor_of,
    near,
    takers_of,
)
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.faults.mask import MASK
from lockstep.parity.graph import Value
from lockstep.parity.graph.graph import Call
from lockstep.parity.judging.metrics import rms

LOW = -5e3  # no score of a right port is as low; -10000 may have been added to one above 0
FAR = 0.05  # of its size: what stands in the place of a score is farther from it
SAID = "{count} taps of scores have the mask on them, such as {tap}: what it hides is not judged"
OTHER = (
    "{count} taps of scores have other numbers where the mask hides them, such as {tap}: not "
    "judged there, as what follows is right"
)


def read_masked(trial: Trial) -> Iterator[str]:
    """Put what they should be in the place of scores that the mask hides; yield a line for each
    kind.
    """
    scores = [call for call in trial.graph.calls if has_scores(trial, call)]
    for said, are_read in ((SAID, are_low), (OTHER, are_idle)):
        found = [call for call in scores if hide(trial, call, are_read)]
        if found:
            trial.forget()
            yield said.format(count=len(found), tap=found[0].taps[0])
            scores = [call for call in scores if call not in found]


def has_scores(trial: Trial, call: Call) -> bool:
    return call.op == "attention_scores" and call.number in trial.dumped


def hide(trial: Trial, call: Call, are_read: Callable[..., bool]) -> bool:
    """Do so with one call, if what is hidden there may be read so; say whether."""
    port = trial.dumped[call.number]
    hidden = hidden_from(trial, call, port.shape)
    if hidden is None or not hidden.any():
        return False
    right = trial.centre(None).target(call.number)
    read = {call.number: np.where(hidden, as_shown(port, right, hidden).astype(port.dtype), port)}
    if not are_read(trial, call, read, hidden):
        return False
    trial.put(read)
    return True


@np.errstate(all="ignore")
def as_shown(port: np.ndarray, right: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """Return what hidden scores should be; times a factor that all others have, if they do."""
    shown = port[~hidden].astype(np.float64)
    factor = factor_of(shown, right[~hidden])
    alike = abs(factor - 1) > LITTLE and near(shown / factor, right[~hidden])
    return right * factor if alike else right


def are_low(trial: Trial, call: Call, read: Values, hidden: np.ndarray) -> bool:
    """Say whether what is hidden is low, and nothing else is."""
    port = trial.dumped[call.number]
    shown = port[~hidden]
    return bool((port <= LOW)[hidden].all() and (np.isfinite(shown) & (shown > LOW)).all())


@np.errstate(all="ignore")
def are_idle(trial: Trial, call: Call, read: Values, hidden: np.ndarray) -> bool:
    """Say whether what is hidden is no score, and all that it could have told in is right."""
    right, port = read[call.number][hidden], trial.dumped[call.number][hidden]
    told = np.isfinite(right)  # NaN may have come from before
    right, port = right[told], port[told]
    if rms(port.astype(np.float64) - right) <= FAR * rms(right):
        return False
    other = trial.over(read)
    pieces = [trial.graph.piece(call.number, trial.dumped), *takers_of(call.number, trial)]
    return len(pieces) > 1 and all(other.judge(piece).passed for piece in pieces)


def hidden_from(trial: Trial, call: Call, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return what the softmax of these scores leaves out (B, H, L, S); None if there is none."""
    graph = trial.graph
    takers = (graph.calls[one] for one in graph.consumers[call.number])
    softmax = next((one for one in takers if one.op == "softmax"), None)
    mask = None if softmax is None else softmax.inputs[MASK]
    if not isinstance(mask, Value):
        return None
    return np.broadcast_to(~trial.centre(None).target(mask.number), shape)
