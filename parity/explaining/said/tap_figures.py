"""How far each dumped tap is from the oracle's own run, beside how it was judged by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.steps.whereabouts import place_of
from lockstep.parity.judging.metrics import distance
from lockstep.parity.judging.result import Tap

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

HEAVY = 10  # noises that a right tap is off by, from which on what it was fed is wrong


def figures(case: Case, number: int, right: np.ndarray, *, after: bool) -> Tap:
    """Put the figures of one tap side by side; `after` says that an earlier one is wrong."""
    own, call = case.judged[number], case.graph.calls[number]
    far = distance(case.dumped[number], right)
    heavy = far.rms_rel is not None and not far.rms_rel <= HEAVY * own.noise
    passed = "inherited" if after and heavy else "ok"
    names = [tap for tap in call.taps if tap in case.sides.names]
    index, axis = own.first_bad, case.graph.token_axes[number][0]
    return Tap(
        name=names[0],
        op=call.op,
        shape=case.dumped[number].shape,
        status=passed if own.passed else "diverged",
        max_abs=far.max_abs,
        rms_rel=far.rms_rel,
        cosine=far.cosine,
        gain=far.gain,
        own_error=own.own_error,
        noise=own.noise,
        ratio=own.ratio,
        place=None if own.passed or index is None else place_of(index, axis, case.graph.steps),
        histogram=far.histogram,
    )


def own_figures(case: Case, number: int) -> Tap:
    """Return how a tap was judged by itself, where nothing is known of the oracle's own run."""
    own, call = case.judged[number], case.graph.calls[number]
    return Tap(
        name=next(tap for tap in call.taps if tap in case.sides.names),
        op=call.op,
        shape=case.graph.shapes[number],
        status="ok" if own.passed else "diverged",
        own_error=own.own_error,
        noise=own.noise,
        ratio=own.ratio,
    )
