import numpy as np

from lockstep.reference.precision import rounded
from lockstep.reference.shapes import Hidden


def add(x: Hidden, y: Hidden) -> Hidden:
    """Add two tensors of one shape: the residual connection.

        out = x + y

    Rounding: once, to `x.dtype`. In half precision the residual stream loses what lies below its
    last bit here, at every layer; that is the model's own behaviour.
    Edges: NaN propagates; inf - inf is NaN. Shapes must be equal: nothing is broadcast.
    Raises: ValueError if the shapes differ.
    Source: He et al. 2015, arXiv:1512.03385, eq. 1.
    """
    if x.shape != y.shape:
        raise ValueError(f"add: y.shape={y.shape}, but should be {x.shape} as x has")
    with np.errstate(invalid="ignore", over="ignore"):
        return x + rounded(y, x.dtype)
