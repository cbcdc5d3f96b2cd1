import mlx.core as mx

from lockstep.fast.shapes import Hidden


def scale(x: Hidden, *, by: float) -> Hidden:
    """Multiply every value by one number. Differs from `reference.ops.scale`: in nothing."""
    return x * mx.array(by, x.dtype)
