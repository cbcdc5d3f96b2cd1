import numpy as np

from lockstep.reference.precision import rounded
from lockstep.reference.shapes import Hidden


def multiply(x: Hidden, y: Hidden) -> Hidden:
    """Multiply two tensors of one shape, element by element: the gate of a gated MLP.

        out = x * y

    Rounding: once, to `x.dtype`.
    Edges: NaN propagates; 0 * inf is NaN. Shapes must be equal: nothing is broadcast.
    Raises: ValueError if the shapes differ.
    Source: Shazeer 2020, arXiv:2002.05202, section 2.
    """
    if x.shape != y.shape:
        raise ValueError(f"multiply: y.shape={y.shape}, but should be {x.shape} as x has")
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        return x * rounded(y, x.dtype)
