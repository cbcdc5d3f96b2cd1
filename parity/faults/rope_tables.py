"""What goes wrong with the tables of cosines and sines."""

from __future__ import annotations

from lockstep.parity.faults.fault import Fault
from lockstep.parity.faults.rewrites import instead
from lockstep.parity.faults.rotations import cos_and_sin_exchanged

FAULTS = (
    Fault(
        id="rope-cos-sin-exchanged",
        wrong="x1 sin(p f) - x2 cos(p f), x2 sin(p f) + x1 cos(p f)",
        right="x1 cos(p f) - x2 sin(p f), x2 cos(p f) + x1 sin(p f)",
        symptom="garbage after a few tokens; scores are as if every turn went backwards",
        where="self_attn.q_rope",
        fix="look at the order in which the two tables are handed over",
        variants={"": instead("rope", cos_and_sin_exchanged)},
    ),
)
