import numpy as np

from lockstep.fast.shapes import Outputs


def softcap(x: Outputs, *, cap: float) -> Outputs:
    """Bend values so that none goes beyond `cap`, in place.

    Differs from `reference.ops.softcap`: multiplied by the reciprocal of `cap`.
    """
    out = np.multiply(x, np.float32(1 / cap), dtype=np.float32)
    np.tanh(out, out=out)
    out *= np.float32(cap)
    return out.astype(x.dtype, copy=False)
