import math

import mlx.core as mx

from lockstep.fast.shapes import Hidden


def gelu_erf(x: Hidden) -> Hidden:
    """Multiply each value by the probability that a normal variable lies below it.

    Differs from `reference.ops.gelu_erf`: the error function is a float32 polynomial, and 1 is
    added to it where it is close to -1, so large negative values have few right digits;
    gelu(-inf) is NaN.
    """
    wide = x.astype(mx.float32)
    return (0.5 * wide * (1 + mx.erf(wide / math.sqrt(2)))).astype(x.dtype)
