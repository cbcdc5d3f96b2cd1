"""Whether a step is the same where nobody listens: a backend may then go another way."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.parity.arrays import to_numpy
from lockstep.parity.judging.result import DIVERGED, Tap
from lockstep.parity.naming.names import parted

LOGITS = "logits"


def unheard(port: Any, tokens: np.ndarray, cache: Any) -> np.ndarray | None:
    """Return the logits of a step that nobody listens to, (B, L, V), on a branch of the cache.

    None of a port whose way is the same then.
    """
    if not getattr(port, "has_unheard_way", False):
        return None
    return to_numpy(port.forward(tokens, cache=cache.branch()))


def held_to_unheard(
    taps: Sequence[Tap], made: Mapping[str, np.ndarray], logits: np.ndarray | None
) -> list[Tap]:
    """Mark the logits that a port made for a listener as diverged if it makes others for none."""
    heard = made.get(LOGITS)
    if logits is None or heard is None or np.array_equal(heard, logits, equal_nan=True):
        return [*taps]
    where = where_they_differ(heard, logits)
    return [
        replace(tap, status=DIVERGED, place=where)
        if parted(tap.name)[1] == LOGITS and tap.status != DIVERGED
        else tap
        for tap in taps
    ]


def where_they_differ(heard: np.ndarray, logits: np.ndarray) -> str:
    if heard.shape != logits.shape:
        return f"with nobody listening they have the shape {logits.shape}"
    same = (heard == logits) | (np.isnan(heard) & np.isnan(logits))
    first = tuple(int(one) for one in np.argwhere(~same)[0])
    values = f"{logits[first]:.9g} at {[*first]}, and {heard[first]:.9g} for a listener"
    return f"with nobody listening {int((~same).sum())} of {same.size} are others: {values}"
