"""A port in float64 that computes parts in float32, as transformers does norms and the softmax.

Where float64 alone would be wrong and float32 is right, the port is judged as one of float32.
"""

from __future__ import annotations

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.rounded_once import WIDE, in_float32

DOUBLE = "float64"
SAID = "its values are float64, but parts of it are right to float32 alone: judged as float32"


def float32_inside(case: Case) -> str | None:
    """Return float32, if some value of a float64 port is right as one of it alone."""
    if case.dtype != DOUBLE:
        return None
    wide = in_float32(case)
    pieces = case.graph.pieces(case.dumped)
    wrong = (one for one in pieces if not case.trial.judge(one).passed)
    return WIDE if any(wide.judge(one).passed for one in wrong) else None
