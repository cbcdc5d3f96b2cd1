from lockstep.fast.ops.multiply import multiply
from lockstep.fast.ops.silu import silu
from lockstep.fast.shapes import Hidden


def swiglu(gate: Hidden, up: Hidden) -> Hidden:
    """Gate one projection with the SiLU of another.

    Differs from `reference.ops.swiglu`: as `silu` does.
    """
    return multiply(silu(gate), up)
