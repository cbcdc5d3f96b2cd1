"""Sixteen exponentials at once."""

import numpy as np

from lockstep.fast.kernels.lanes import fma, multiplied, rint, splat, times_two_to, unless_below
from lockstep.fast.kernels.parts import inlined

PER_LN_2 = np.float32(1.4426950408889634)
# ln 2 in two parts, the first of so few digits that a whole number times it is exact.
LN_2, REST_OF_LN_2 = np.float32(0.693359375), np.float32(-2.12194440e-4)
# 1 / n!, from the highest: the Taylor polynomial over half a power of two on either side of 0.
TERMS = tuple(np.float32(term) for term in (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1, 1))
SMALLEST = np.float32(-104)  # below it a result is nearer to 0 than to any float32


@inlined
def exp(power):
    """Return e to powers of at most 0, to a few units of the last place; below -104 it is 0.

    By powers of two, as Cody and Waite do it: e**x = 2**k * e**(x - k ln 2).
    """
    twos = rint(multiplied(power, splat(PER_LN_2)))
    rest = fma(twos, splat(-LN_2), power)
    rest = fma(twos, splat(-REST_OF_LN_2), rest)
    result = splat(TERMS[0])
    for term in TERMS[1:]:
        result = fma(result, rest, splat(term))
    return unless_below(power, SMALLEST, times_two_to(result, twos))
