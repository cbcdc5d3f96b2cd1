import mlx.core as mx

from lockstep.fast.shapes import Hidden


def silu(x: Hidden) -> Hidden:
    """Multiply each value by its own sigmoid.

    Differs from `reference.ops.silu`: in half precision the sigmoid is rounded before the
    product; silu(-inf) is NaN, as in every engine that multiplies.
    """
    return x * mx.sigmoid(x)
