from lockstep.fast.cpu.gelu_tanh import gelu_tanh
from lockstep.fast.cpu.multiply import multiply
from lockstep.fast.shapes import Hidden


def geglu(gate: Hidden, up: Hidden) -> Hidden:
    """Gate one projection with the GELU of another.

    Differs from `reference.ops.geglu`: as `gelu_tanh` does.
    """
    return multiply(gelu_tanh(gate), up)
