"""A port in half precision whose values were widened to be stored, and are called float32.

A float32 port whose values were rounded and widened again looks the same. What is right tells.
"""

from __future__ import annotations

from lockstep.parity.explaining.case import Case
from lockstep.parity.explaining.conventions.port_dtype import (
    HALVES,
    HEADS,
    WIDE,
    most_kinds,
    sampled,
)
from lockstep.parity.explaining.conventions.some_in_half import sort_some_stored
from lockstep.parity.naming.names import parted

SAID = "the dump says float32, but its values are {own}, and more of it is right so: judged as that"


def computed_in_half(case: Case) -> str | None:
    """Return the half precision that most values show, if more is right in it than in float32."""
    if case.sides.dump.about.get("dtype") != WIDE:
        return None
    shapes = case.graph.tap_shapes  # but for logits, which a float32 port may round
    inside = {tap: shape for tap, shape in shapes.items() if parted(tap)[1] not in HEADS}
    stored, shown = most_kinds(case.sides, sampled(case.sides, inside))
    if stored != WIDE or shown not in HALVES:
        return None
    return shown if right_in(case, shown) > right_in(case, WIDE) else None


def right_in(case: Case, dtype: str) -> int:
    """Return how many pieces are right in a dtype, once what a file rounded is noise in float32."""
    other = case.in_dtype(dtype)
    other.sort(lambda _: None)
    for _ in sort_some_stored(other, lambda _: None):
        pass
    return len(other.right)
