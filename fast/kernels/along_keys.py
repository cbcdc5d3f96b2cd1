"""One token's way along keys, and along values, with all heads that share them.

Two heads go together: what is read serves both. Rows pass by one after another, as memory is read
quickest so. A sum is that of a head alone: so what goes together changes no bit. Keys and values in
half precision are widened as they are read, which is exact.
"""

import numpy as np

from lockstep.fast.kernels.lanes import WIDTH, fma, splat, total
from lockstep.fast.kernels.memory import LINE, ask_for, floats, scalar, store
from lockstep.fast.kernels.parts import inlined

TWO = 2  # heads; where there is one alone, it takes both places
NEAR = 2048  # bytes: how far in front of itself memory is asked for


@inlined
def start_of(array, row, group):
    return (row * array.strides[0] + group * array.strides[1]) // array.itemsize


@inlined
def ask_ahead(array, at, width):
    """Ask for the lines of a row some rows in front of one; behind the array it does no harm."""
    for index in range(0, width, LINE // array.itemsize):
        ask_for(array, at + NEAR // array.itemsize + index)


@inlined
def scored(queries, keys, row, group, seen, scores):
    """Write the products of queries with their keys; what is not seen, and the rest, is -inf."""
    start, stride = start_of(keys, row, group), keys.strides[2] // keys.itemsize
    scores[:] = -np.inf
    for key in range(keys.shape[2]):
        if seen[row, key]:
            score(queries, keys, start + key * stride, scores[:, key])


@inlined
def score(queries, keys, at, scores):
    """Write the products of all queries with one key."""
    many, width = queries.shape
    ask_ahead(keys, at, width)
    for one in range(0, many, TWO):
        two = min(one + 1, many - 1)
        some = others = splat(np.float32(0))
        for index in range(0, width, WIDTH):
            key = floats(keys, at + index)
            some = fma(floats(queries, one * width + index), key, some)
            others = fma(floats(queries, two * width + index), key, others)
        scores[one], scores[two] = total(some), total(others)


@inlined
def averaged(probs, values, row, group, seen, out, to):
    """Write the averages of the values that are seen, weighted by the `probs` of each head."""
    start, stride = start_of(values, row, group), values.strides[2] // values.itemsize
    for index in range(0, len(probs) * values.shape[3], WIDTH):
        store(out, to + index, splat(np.float32(0)))
    for key in range(values.shape[2]):
        if seen[row, key]:
            add(probs, key, values, start + key * stride, out, to)


@inlined
def add(probs, key, values, at, out, to):
    """Add one value to the averages of all heads, each of which stays in the first cache."""
    (many, room), width = probs.shape, values.shape[3]
    ask_ahead(values, at, width)
    for one in range(0, many, TWO):
        two = min(one + 1, many - 1)
        prob = splat(scalar(probs, one * room + key))
        other = splat(scalar(probs, two * room + key))
        for index in range(0, width, WIDTH):
            here, there = to + one * width + index, to + two * width + index
            value = floats(values, at + index)
            some = fma(prob, value, floats(out, here))
            others = fma(other, value, floats(out, there))
            store(out, here, some)
            store(out, there, others)
