"""Values that a port dumps at another point of the same computation: a convention, and no bug.

mlx-lm scales an embedding after the module that looks it up, transformers inside of it; a hook on
the module sees two different values of one model. Whether a scale is missing or only comes later is
told by what the port computes from it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lockstep.parity.explaining.trial import Trial
from lockstep.parity.graph.graph import Piece

BEFORE = "{tap} is dumped before it is scaled by {by:.6g}; what follows takes it scaled"


def read_as_meant(trial: Trial) -> Iterator[str]:
    """Scale what was dumped before its scale, where all that follows says so; yield a line each."""
    graph, dumped = trial.graph, trial.dumped
    for call in graph.calls:
        if call.op != "scale" or call.number not in dumped:
            continue
        piece = graph.piece(call.number, dumped)
        right = trial.centre(None).target(call.number)
        before = dumped[call.number].astype(np.float64)
        meant = before * call.options["by"]
        if trial.judge(piece).passed or not near(meant, right):
            continue
        scaled = dict(dumped) | {call.number: meant.astype(dumped[call.number].dtype)}
        if follows(trial, scaled, call.number):
            dumped[call.number] = scaled[call.number]
            trial.forget()
            yield BEFORE.format(tap=call.taps[0], by=call.options["by"])


def near(found: np.ndarray, right: np.ndarray) -> bool:
    """Say whether two values are the same but for some roundings to a half precision."""
    with np.errstate(all="ignore"):
        return bool(np.allclose(found, right, rtol=2**-6, atol=1e-6 * np.abs(right).max()))


def follows(trial: Trial, scaled: dict[int, np.ndarray], number: int) -> bool:
    """Say whether what the port computed next is nearer to what follows from the scaled value."""
    graph = trial.graph
    other = trial.over(scaled)
    pieces = (graph.piece(target, trial.dumped) for target in sorted(trial.dumped))
    takers = [piece for piece in pieces if takes(piece, number, trial)]
    for piece in takers:
        raw, meant = (one.look(piece, {}).raw(0, None) for one in (trial, other))
        if max(raw, meant) > 2 * min(raw, meant):  # a norm hides the scale, a sum does not
            return meant < raw
    return False


def takes(piece: Piece, number: int, trial: Trial) -> bool:
    """Say whether a piece is computed from a dumped value."""
    return piece.target != number and any(
        number in trial.graph.sources(call) for call in piece.calls
    )
