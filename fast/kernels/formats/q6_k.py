"""256 weights in 210 bytes: low halves of codes, their top two bits, signed scales, d (float16).

The codes lie around 32. A half of the block is 128 weights: 64 bytes of low halves, of all bytes
first the low four bits, and 32 bytes of top bits, of all bytes first the lowest two.
"""

import numpy as np

from lockstep.fast.kernels.kernel import inlined
from lockstep.fast.kernels.lanes import (
    WIDTH,
    field,
    float16_at,
    floats,
    fma,
    joined,
    multiplied,
    octet_at,
    octets,
    scalar,
    splat,
    to_floats,
)

GROUP = 16


def share(of, blocks, start, x, at, sums, group, lanes, constant):
    d = float16_at(blocks, start + 208)
    for index in range(16):
        some = multiplied(codes(blocks, start, index), floats(x, at + index * WIDTH))
        scale = d * np.float32(np.int8(octet_at(blocks, start + 192 + index)))
        lanes = fma(splat(scale), some, lanes)
        constant -= np.float32(32) * scale * scalar(sums, group + index)
    return lanes, constant


@inlined
def codes(blocks, start, group):
    half, within = group // 8, group % 8 * WIDTH  # of the block, and the first weight in it
    low = octets(blocks, start + half * 64 + within % 64)
    top = octets(blocks, start + 128 + half * 32 + within % 32)
    return to_floats(joined(field(low, within // 64 * 4, 15), field(top, within // 32 * 2, 3), 4))
