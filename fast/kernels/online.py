"""What softmaxes and their averages need where keys pass by in blocks."""

import numpy as np

from lockstep.fast.kernels.lanes import (
    WIDTH,
    magnitude,
    multiplied,
    splat,
    subtracted,
    where_below,
)
from lockstep.fast.kernels.parts import inlined

LEAST = np.float32(np.finfo(np.float32).min)  # in place of -inf, from which nothing is taken away
TINY = np.float32(2**-149)  # below it is 0 alone


@inlined
def bounds(seen, row, first, many, begin, end):
    """Return the first key from `begin` to `end` that some query sees, and one behind the last."""
    start, stop = end, begin
    for one in range(first, first + many):
        low, high = begin, end
        while low < start and not seen[row, one, low]:
            low += 1
        while high > stop and not seen[row, one, high - 1]:
            high -= 1
        start, stop = min(start, low), max(stop, high)
    return start, stop


@inlined
def state_of(known, row, head, first, many):
    """Return what sixteen queries know, (2, 16); for those behind the last there are zeros."""
    state = np.zeros((2, WIDTH), np.float32)
    for one in range(many):
        state[0, one] = known[row, head, first + one, 0]
        state[1, one] = known[row, head, first + one, 1]
    return state


@inlined
def keep(state, known, row, head, first, many):
    """Write what `many` of sixteen queries know now."""
    for one in range(many):
        known[row, head, first + one, 0] = state[0, one]
        known[row, head, first + one, 1] = state[1, one]


@inlined
def shared(sums, share):
    """Return `share` of the sums: none of one that overflowed, if the share is 0. NaN stays."""
    some, none = multiplied(sums, share), splat(np.float32(0))
    bounded = where_below(subtracted(none, magnitude(sums)), LEAST, none, some)
    return where_below(share, TINY, bounded, some)
