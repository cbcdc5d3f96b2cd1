"""Whether all that is wrong of a port in float32 would be right of one in half precision.

Logits alone, and a stream that is kept in float32, do not show what their products were computed
in. So it is asked whether the port may have been in half precision, before anybody looks for a bug.
"""

from __future__ import annotations

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.rounded_once import WIDE
from lockstep.parity.explaining.said.diagnosis import Diagnosis
from lockstep.parity.faults.rewrites import NORMS

HALVES = ("float16", "bfloat16")  # the finer one first
# What such a port seems to have beside it.
ALIKE = frozenset({"logits-half-precision", "port-quantised-bfloat16", "port-quantised-float16"})
SAID = (
    "all of it is within what {half} rounds: if the port computes in that, say --dtype {half}, and "
    "nothing is wrong"
)


def within_half(case: Case, result: Diagnosis) -> list[str]:
    """Return a line if what is unknown would be right in half precision, and all else is too."""
    names = {bug.id for bug in result.faults}
    if case.sides.caches:  # which are compared by themselves
        return []
    if case.dtype != WIDE or names - ALIKE or not result.unexplained or shows_wide(case):
        return []
    half = next((one for one in HALVES if is_right(case, one)), None)
    return [] if half is None else [SAID.format(half=half)]


def shows_wide(case: Case) -> bool:
    """Say whether something that rounds is right in float32, which half precision never is."""
    ops = {case.graph.calls[one].op for piece in case.right for one in piece.calls}
    return not ops.isdisjoint(("linear", *NORMS))


def is_right(case: Case, dtype: str) -> bool:
    """Say whether all pieces would be right in a dtype. Those that are wrong are asked first."""
    other = case.in_dtype(dtype)
    wrong = {piece.target for piece in case.wrong}
    pieces = filter(other.decides, other.graph.pieces(other.dumped))
    ordered = sorted(pieces, key=lambda piece: piece.target not in wrong)
    return not other.misshapen and all(other.trial.judge(piece).passed for piece in ordered)
