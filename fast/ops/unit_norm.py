import mlx.core as mx

from lockstep.fast.shapes import Hidden


def unit_norm(x: Hidden, *, eps: float) -> Hidden:
    """Scale each vector to unit root mean square, in one kernel.

    Differs from `reference.ops.unit_norm`: in nothing.
    """
    return mx.fast.rms_norm(x, None, eps)
