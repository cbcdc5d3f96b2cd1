"""The product of activations with a stored matrix, which is never written out.

A token alone is multiplied by sixteen weights at a time, as they come. Of many tokens four take
part in each step, with four rows that are unpacked into the first cache once for a block of them.
"""

import numpy as np

from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, added, fma, multiplied, splat, total
from lockstep.fast.kernels.memory import floats, prefetch, store
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.weights import weights

ROWS = 32  # of the matrix that a core takes at a time
TOKENS = 32  # whose activations stay in the second cache while rows go by
FOUR = 4  # tokens, and rows, that a step takes once there are as many
COLUMNS = 1024  # of which four rows stay in the first cache: a multiple of every group


@kernel
def multiply(block, of, x, matrix, y):
    """Write the products of x (M, K) with a block of rows of a matrix (N, K) to y (M, N)."""
    tokens, rows = y.shape
    first, last = block * ROWS, min(block * ROWS + ROWS, rows)
    done = tokens // FOUR * FOUR
    for start in range(0, done, TOKENS):
        fours(of, x, matrix, y, first, last, start, min(start + TOKENS, done))
    for row in range(first, last):
        for token in range(done, tokens):
            y[token, row] = dot(of, x, matrix, row, token)


@kernel
def multiply_alone(block, of, x, matrix, y):
    """Do the same for fewer tokens than four: half as much to compile."""
    for row in range(block * ROWS, min(block * ROWS + ROWS, y.shape[1])):
        for token in range(len(y)):
            y[token, row] = dot(of, x, matrix, row, token)


@inlined
def dot(of, x, matrix, row, token):
    """Multiply one row by the activations of one token.

    Memory is asked for amid the reading: before it, two lines at once hold up what is read next.
    """
    lanes, groups = splat(np.float32(0)), x.shape[1] // of.group
    for group in range(groups):
        at = token * x.shape[1] + group * of.group
        some = multiplied(weights(of, matrix, row, group, 0), floats(x, at))
        prefetch(of, matrix[0], row * matrix[0].shape[1] + group * of.step)
        for index in range(1, of.group // WIDTH):
            some = fma(weights(of, matrix, row, group, index), floats(x, at + index * WIDTH), some)
        lanes = added(lanes, some)
    return total(lanes)


@inlined
def fours(of, x, matrix, y, first, last, start, stop):
    """Multiply a block of rows by a block of tokens, four by four; the last of them one by one.

    Of rows too long for the first cache a piece is done at a time.
    """
    tile = np.empty((FOUR, COLUMNS), np.float32)
    whole = first + (last - first) // FOUR * FOUR
    for begin in range(0, x.shape[1], COLUMNS):
        end = min(begin + COLUMNS, x.shape[1])
        for row in range(first, whole, FOUR):
            for within in range(FOUR):
                unpack(of, matrix, row + within, begin, end, tile, within)
            for token in range(start, stop, FOUR):
                sixteen(tile, x, begin, end, token, y, row)
    for row in range(whole, last):
        for token in range(start, stop):
            y[token, row] = dot(of, x, matrix, row, token)


@inlined
def unpack(of, matrix, row, begin, end, tile, to):
    for group in range(begin // of.group, end // of.group):
        for index in range(of.group // WIDTH):
            at = to * COLUMNS + group * of.group - begin + index * WIDTH
            store(tile, at, weights(of, matrix, row, group, index))


@inlined
def sixteen(tile, x, begin, end, token, y, row):
    """Add four tokens' products with four rows: eight loads serve sixteen products."""
    columns = x.shape[1]
    zero = splat(np.float32(0))
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
    c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = zero
    for column in range(0, end - begin, WIDTH):
        w0, w1 = floats(tile, column), floats(tile, COLUMNS + column)
        w2, w3 = floats(tile, 2 * COLUMNS + column), floats(tile, 3 * COLUMNS + column)
        at = token * columns + begin + column
        one = floats(x, at)
        a0, a1, a2, a3 = fma(one, w0, a0), fma(one, w1, a1), fma(one, w2, a2), fma(one, w3, a3)
        one = floats(x, at + columns)
        b0, b1, b2, b3 = fma(one, w0, b0), fma(one, w1, b1), fma(one, w2, b2), fma(one, w3, b3)
        one = floats(x, at + 2 * columns)
        c0, c1, c2, c3 = fma(one, w0, c0), fma(one, w1, c1), fma(one, w2, c2), fma(one, w3, c3)
        one = floats(x, at + 3 * columns)
        d0, d1, d2, d3 = fma(one, w0, d0), fma(one, w1, d1), fma(one, w2, d2), fma(one, w3, d3)
    add_four(y, token, row, begin, a0, a1, a2, a3)
    add_four(y, token + 1, row, begin, b0, b1, b2, b3)
    add_four(y, token + 2, row, begin, c0, c1, c2, c3)
    add_four(y, token + 3, row, begin, d0, d1, d2, d3)


@inlined
def add_four(y, token, row, begin, first, second, third, fourth):
    if begin == 0:
        y[token, row], y[token, row + 1], y[token, row + 2], y[token, row + 3] = 0, 0, 0, 0
    y[token, row] += total(first)
    y[token, row + 1] += total(second)
    y[token, row + 2] += total(third)
    y[token, row + 3] += total(fourth)
