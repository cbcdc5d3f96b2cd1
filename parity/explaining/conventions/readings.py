"""Values that a port dumps at another point of the same computation: a convention, and no bug.

mlx-lm scales an embedding after the module that looks it up, transformers inside of it; a hook on
the module sees two different values of one model. So it is with scores, which some scale where they
are made, and others in the softmax. Whether a scale is missing or only comes later is told by what
the port computes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.graph.graph import Call, Piece
from lockstep.parity.naming.grouping import grouped

Values = Mapping[int, np.ndarray]
SCALES = {"scale": "by", "attention_scores": "scale"}  # operations, and what their scale is called
LITTLE = 0.01  # a factor as near to 1 is another bug's
BEFORE = "{tap} is dumped before it is scaled by {by:.6g}; what follows takes it scaled"


def read_as_meant(trial: Trial, *, later: bool) -> list[str]:
    """Scale what was dumped before its scale, where all that follows says so; return lines.

    `later` says that the port is known to scale embeddings later, which counts where nothing that
    follows tells: other bugs may hide it.
    """
    graph, dumped = trial.graph, trial.dumped
    found: dict[float, list[str]] = {}
    for call in graph.calls:
        by = call.options.get(SCALES.get(call.op, ""), 1.0)
        if by == 1 or call.number not in dumped or not graph.judges(call.number):
            continue
        piece = graph.piece(call.number, dumped)
        right = trial.centre(None).target(call.number)
        meant = readings(dumped[call.number], by)
        if trial.judge(piece).passed or not near(meant[0], right):
            continue
        scaled = min(({call.number: one} for one in meant), key=closeness(trial, call))
        told = follows(trial, scaled, call.number)
        if (later and call.op == "scale") if told is None else told:
            trial.put(scaled)
            trial.forget()
            found.setdefault(by, []).append(call.taps[0])
    return [BEFORE.format(tap=grouped(taps), by=by) for by, taps in found.items()]


def readings(before: np.ndarray, by: float) -> list[np.ndarray]:
    """Return what a value is once it is scaled: by the scale itself, or as its dtype holds that."""
    kind, wide = before.dtype, before.astype(np.float64)
    return [(wide * np.float64(one)).astype(kind) for one in (by, kind.type(by))]


def closeness(trial: Trial, call: Call) -> Callable[[Values], float]:
    """Return a measure of a reading: how far, in noises, what the port computed next is from it."""
    takers = takers_of(call.number, trial)

    def distance(scaled: Values) -> float:
        other = trial.over(scaled)
        return sum(other.look(piece, {}).raw(0, None) for piece in takers)

    return distance


def near(found: np.ndarray, right: np.ndarray) -> bool:
    """Say whether two values are the same but for some roundings to a half precision."""
    with np.errstate(all="ignore"):
        return bool(np.allclose(found, right, rtol=2**-6, atol=1e-6 * np.abs(right).max()))


def factor_of(port: np.ndarray, right: np.ndarray) -> float:
    """Return how many times the right value a port has, 1 if that is no number."""
    factor = float(np.sum(port * right) / np.sum(right * right))
    return factor if np.isfinite(factor) and factor else 1.0


def follows(trial: Trial, scaled: Values, number: int) -> bool | None:
    """Say whether what the port computed next is nearer to what follows from the scaled value.

    None if no value tells.
    """
    other = trial.over(scaled)
    for piece in takers_of(number, trial):
        raw, meant = (one.look(piece, {}).raw(0, None) for one in (trial, other))
        if max(raw, meant) > 2 * min(raw, meant):  # a norm hides the scale, a sum does not
            return meant < raw
    return None


def takers_of(number: int, trial: Trial) -> list[Piece]:
    """Return the pieces that are computed from a dumped value, in order."""
    pieces = trial.graph.pieces(trial.dumped)
    return [piece for piece in pieces if takes(piece, number, trial)]


def takes(piece: Piece, number: int, trial: Trial) -> bool:
    """Say whether a piece is computed from a dumped value."""
    return piece.target != number and any(
        number in trial.graph.sources(call) for call in piece.calls
    )
