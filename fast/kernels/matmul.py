"""The product of activations with a stored matrix, which is never written out.

A token alone is multiplied by sixteen weights at a time, as they come. Of many tokens four take
part in each step, with four rows that are unpacked into the first cache once for a block of them.
"""

import numpy as np

from lockstep.fast.kernels.float_tile import FOUR, put_sixteen
from lockstep.fast.kernels.kernel import kernel
from lockstep.fast.kernels.lanes import WIDTH, added, fma, multiplied, splat, total
from lockstep.fast.kernels.memory import floats, prefetch, store
from lockstep.fast.kernels.parts import inlined
from lockstep.fast.kernels.weights import weights

ROWS = 32  # of the matrix that a core takes at a time
TOKENS = 32  # whose activations stay in the second cache while rows go by
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
    tile, sums = np.empty((FOUR, COLUMNS), np.float32), np.empty((FOUR, FOUR), np.float32)
    whole = first + (last - first) // FOUR * FOUR
    for begin in range(0, x.shape[1], COLUMNS):
        end = min(begin + COLUMNS, x.shape[1])
        for row in range(first, whole, FOUR):
            for within in range(FOUR):
                unpack(of, matrix, row + within, begin, end, tile, within)
            for token in range(start, stop, FOUR):
                sixteen(tile, x, begin, end, token, y, row, sums)
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
def sixteen(tile, x, begin, end, token, y, row, sums):
    """Add four tokens' products with four rows, which are made in `sums`."""
    columns = x.shape[1]
    put_sixteen(tile, COLUMNS, x, token * columns + begin, columns, end - begin, sums)
    for one in range(FOUR):
        for other in range(FOUR):
            before = y[token + one, row + other] if begin else np.float32(0)
            y[token + one, row + other] = before + sums[one, other]
