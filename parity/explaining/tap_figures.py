"""How far each dumped tap is from the oracle's own run, beside how it was judged by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lockstep.parity.explaining.whereabouts import place_of
from lockstep.parity.graph import Evaluator
from lockstep.parity.metrics import Distance, distance
from lockstep.parity.result import Tap

if TYPE_CHECKING:
    from lockstep.parity.explaining.case import Case

FLOAT32 = np.dtype(np.float32)
HEAVY = 10  # noises that a right tap is off by, from which on what it was fed is wrong


def tap_figures(case: Case) -> list[Tap]:
    """Return a tap for every piece that was judged, in the order of computation.

    This costs one forward pass of the reference, less what is still kept of another one.
    """
    run = Evaluator(case.graph, case.model.ops, FLOAT32, {}, case.read)
    found: list[Tap] = []
    for number in sorted(case.judged):
        far = distance(case.dumped[number], run.target(number))
        after = any(tap.status == "diverged" for tap in found)
        found.append(figures(case, number, far, after=after))
    return found


def figures(case: Case, number: int, far: Distance, *, after: bool) -> Tap:
    """Put the figures of one tap side by side; `after` says that an earlier one is wrong."""
    own, call = case.judged[number], case.graph.calls[number]
    heavy = far.rms_rel is not None and not far.rms_rel <= HEAVY * own.noise
    right = "inherited" if after and heavy else "ok"
    names = [tap for tap in call.taps if tap in case.sides.names]
    index, axis = own.first_bad, case.graph.token_axes[number][0]
    return Tap(
        name=names[0],
        op=call.op,
        shape=case.dumped[number].shape,
        status=right if own.passed else "diverged",
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
