"""Rows of floats as they are stored: float32, float16 or bfloat16, widened in the register."""

import numpy as np
from numba import prange

from lockstep.fast.kernels.kernel import AHEAD, ROWS, inlined, kernel
from lockstep.fast.kernels.lanes import WIDTH, floats, fma, prefetch, scalar, splat, total


@kernel
def multiply(x, weight, y):
    """Write the products of x (M, K) with all rows of the matrix (N, K) to y (M, N)."""
    rows, columns = weight.shape
    for block in prange((rows + ROWS - 1) // ROWS):
        for row in range(block * ROWS, min(block * ROWS + ROWS, rows)):
            for token in range(len(x)):
                y[token, row] = dot(weight, row * columns, x, token * columns, columns)


@inlined
def dot(weight, start, x, at, columns):
    """Sum in four vectors, so that one addition need not wait for the one before."""
    a = b = c = d = splat(np.float32(0))
    rest, step = np.float32(0), 4 * WIDTH
    whole = columns // step * step
    for index in range(0, whole, step):
        here, there = start + index, at + index
        prefetch(weight, here + AHEAD // 4)
        a = fma(floats(weight, here), floats(x, there), a)
        b = fma(floats(weight, here + WIDTH), floats(x, there + WIDTH), b)
        c = fma(floats(weight, here + 2 * WIDTH), floats(x, there + 2 * WIDTH), c)
        d = fma(floats(weight, here + 3 * WIDTH), floats(x, there + 3 * WIDTH), d)
    for index in range(whole, columns):
        rest += scalar(weight, start + index) * scalar(x, at + index)
    return (total(a) + total(b)) + (total(c) + total(d)) + rest
