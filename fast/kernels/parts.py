"""What several formats do to the activations before the rows are gone through."""

import numpy as np

from lockstep.fast.kernels.kernel import inlined
from lockstep.fast.kernels.lanes import WIDTH, floats, fma, scalar, splat, total


@inlined
def planes(x, parts):
    """Sort each row by place within a byte: (M, K) to (M, parts, K / parts)."""
    rows, columns = x.shape
    out = np.empty((rows, parts, columns // parts), np.float32)
    for row in range(rows):
        for octet in range(columns // parts):
            for part in range(parts):
                out[row, part, octet] = x[row, octet * parts + part]
    return out


@inlined
def group_sums(x, group):
    """Sum each row by groups: (M, K) to (M, K / group)."""
    rows, columns = x.shape
    out = np.empty((rows, columns // group), np.float32)
    for row in range(rows):
        for index in range(columns // group):
            some = np.float32(0)
            for column in range(index * group, (index + 1) * group):
                some += x[row, column]
            out[row, index] = some
    return out


@inlined
def dot_floats(a, at_a, b, at_b, length):
    """Multiply `length` numbers from a place of one array by as many of another, and sum up."""
    lanes, rest = splat(np.float32(0)), np.float32(0)
    whole = length // WIDTH * WIDTH
    for index in range(0, whole, WIDTH):
        lanes = fma(floats(a, at_a + index), floats(b, at_b + index), lanes)
    for index in range(whole, length):
        rest += scalar(a, at_a + index) * scalar(b, at_b + index)
    return total(lanes) + rest
