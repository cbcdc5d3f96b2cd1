import numpy as np

from lockstep.fast import kernels
from lockstep.fast.cpu.silu import silu
from lockstep.fast.shapes import Hidden


def swiglu(gate: Hidden, up: Hidden) -> Hidden:
    """Gate one projection with the SiLU of another, in one pass.

    Differs from `reference.ops.swiglu`: as `silu` does.
    """
    if gate.shape != up.shape:
        raise ValueError(f"swiglu: up.shape={up.shape}, but should be {gate.shape} as gate has")
    if kernels.available():
        activated = kernels.module("activate").activated
        found = activated(gate, up, gelu=False)
        if found is not None:
            return found
    out = silu(gate)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        return np.multiply(out, up.astype(out.dtype, copy=False), out=out)
