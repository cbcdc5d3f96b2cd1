from lockstep.fast import kernels
from lockstep.fast.cpu.gelu_tanh import gelu_tanh
from lockstep.fast.cpu.multiply import multiply
from lockstep.fast.shapes import Hidden


def geglu(gate: Hidden, up: Hidden) -> Hidden:
    """Gate one projection with the GELU of another, in one pass.

    Differs from `reference.ops.geglu`: as `gelu_tanh` does.
    """
    if kernels.available() and gate.shape == up.shape:
        activated = kernels.module("activate").activated
        found = activated(gate, up, gelu=True)
        if found is not None:
            return found
    return multiply(gelu_tanh(gate), up)
