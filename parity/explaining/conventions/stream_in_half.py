"""A port that computes in float32 and keeps its stream alone in float16: a bug, and no dtype.

Of the outputs of its layers most are float16, as those of a port that computes in it. But that one
rounds often in a layer, and this one at the sums alone: with those rounded, an exact replay gives
its bits. What it computes from the stream, as norms and logits, is not held by float16.
"""

from __future__ import annotations

import numpy as np

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.rounded_once import FAITHFUL, in_float32
from lockstep.parity.explaining.conventions.rounded_when_stored import held
from lockstep.parity.explaining.searching.trial import Trial
from lockstep.parity.faults.routers import rounded_through
from lockstep.parity.graph.graph import Piece
from lockstep.reference.precision import dtype_named, rounded

NARROW = "float16"
GIVEN = ("embedding", "add")  # what the stream is made of


def stream_in_half(case: Case) -> bool:
    """Say whether the sums alone are rounded to float16, and nothing that is made of them."""
    pieces = case.graph.pieces(case.dumped)
    op_of = {one.target: case.graph.calls[one.target].op for one in pieces}
    sums = [one for one in pieces if op_of[one.target] == "add"]
    rest = [one for one in pieces if op_of[one.target] not in GIVEN]
    if case.dtype != NARROW or not sums or not rest:
        return False
    if any(held(case.trial.port(one.target), dtype_named(NARROW)).all() for one in rest):
        return False
    wide = in_float32(case)
    return float(np.mean(np.concatenate([same(one, wide) for one in sums]))) >= FAITHFUL


def same(piece: Piece, wide: Trial) -> np.ndarray:
    """Return which of a sum's numbers an exact replay gives that rounds every sum to float16."""
    half = rounded_through(NARROW)
    calls = map(wide.graph.calls.__getitem__, piece.calls)
    sums = {call.number: call.followed(half) for call in calls if call.op == "add"}
    with np.errstate(all="ignore"):  # a broken port may hold anything
        found = rounded(wide.centre(None).target(piece.target, sums), dtype_named(NARROW))
    return np.asarray(found == wide.port(piece.target)).ravel()
