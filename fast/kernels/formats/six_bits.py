"""Twelve bytes that hold eight scales and eight minima of 6 bits, as Q4_K and Q5_K have them."""

import numpy as np

from lockstep.fast.kernels.kernel import inlined
from lockstep.fast.kernels.lanes import octet_at


@inlined
def six_bit_pair(blocks, start, group):
    """Return the scale and the minimum of one of the eight groups.

    The first four pairs are whole bytes' low bits; the last four keep their top two bits there.
    """
    low, high = octet_at(blocks, start + group % 4), octet_at(blocks, start + 4 + group % 4)
    if group < 4:
        return np.float32(low & 63), np.float32(high & 63)
    rest = octet_at(blocks, start + 4 + group)
    return np.float32(rest & 15 | low >> 6 << 4), np.float32(rest >> 4 | high >> 6 << 4)
