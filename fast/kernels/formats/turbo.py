"""TurboQuant's keys and values, still turned: levels by their bits, and signs behind them.

The arrays are words, lengths, the terms of a level (`turbo_cpu.terms`, and behind them what scales
the signs), and the lengths of what is left. A group is a word of each plane of bits. Keys that are
right on average have as many groups again behind these: the signs of the projection.
"""

from functools import cache

import numpy as np

from lockstep.fast.kernels.constants import Constants
from lockstep.fast.kernels.lanes import WIDTH, fma, multiplied, splat, to_floats
from lockstep.fast.kernels.memory import bits_at, scalar
from lockstep.fast.kernels.parts import inlined

WORD = 32


@cache
def layout(bits: int, *, unbiased: bool) -> Constants:
    """Return the numbers of codes of `bits` bits, signs not counted."""
    return Constants(format="turbo", bits=bits, planes=bits + int(unbiased), group=WORD)


def weights(of, matrix, row, group, index):
    words, lengths, terms, left = matrix
    plane, first, length = words.shape[1] // of.planes, index * WIDTH, scalar(lengths, row)
    at = row * words.shape[1] + group
    if group < plane:
        return multiplied(level(of, words, terms, at, plane, first), splat(length))
    scale = length * scalar(left, row) * scalar(terms, len(terms) - 1)
    return multiplied(sign(words, at + (of.bits - 1) * plane, first), splat(scale))


@inlined
def sign(words, at, first):
    """Return 1 where a bit is set, and -1 where it is not."""
    return fma(to_floats(bits_at(words, at, first)), splat(np.float32(2)), splat(np.float32(-1)))


@inlined
def level(of, words, terms, at, plane, first):
    """Return the levels of sixteen codes: sums of products of an odd number of their signs."""
    s0 = sign(words, at, first)
    low = multiplied(s0, splat(scalar(terms, 1)))
    if of.bits == 1:
        return low
    s1 = sign(words, at + plane, first)
    low = fma(s1, splat(scalar(terms, 2)), low)
    if of.bits == 2:
        return low
    both, s2 = multiplied(s0, s1), sign(words, at + 2 * plane, first)
    low = fma(s2, fma(both, splat(scalar(terms, 7)), splat(scalar(terms, 4))), low)
    if of.bits == 3:
        return low
    others = fma(s1, splat(scalar(terms, 14)), multiplied(s0, splat(scalar(terms, 13))))
    high = fma(both, splat(scalar(terms, 11)), splat(scalar(terms, 8)))
    return fma(sign(words, at + 3 * plane, first), fma(s2, others, high), low)
