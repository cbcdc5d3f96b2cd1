"""256 weights in 144 bytes: d and dmin (float16), 12 bytes of 6-bit scales and minima, codes.

Each 32 bytes of codes hold two groups of 32: the low halves of all bytes, then the high halves.
"""

from lockstep.fast.kernels.formats.six_bits import six_bit_pair
from lockstep.fast.kernels.lanes import (
    WIDTH,
    field,
    float16_at,
    floats,
    fma,
    multiplied,
    octets,
    scalar,
    splat,
    to_floats,
)

GROUP = 32


def share(of, blocks, start, x, at, sums, group, lanes, constant):
    d, dmin = float16_at(blocks, start), float16_at(blocks, start + 2)
    for index in range(8):
        codes, here = start + 16 + index // 2 * 32, at + index * 32
        low = field(octets(blocks, codes), index % 2 * 4, 15)
        high = field(octets(blocks, codes + WIDTH), index % 2 * 4, 15)
        some = multiplied(to_floats(low), floats(x, here))
        some = fma(to_floats(high), floats(x, here + WIDTH), some)
        scale, minimum = six_bit_pair(blocks, start + 4, index)
        lanes = fma(splat(d * scale), some, lanes)
        constant -= dmin * minimum * scalar(sums, group + index)
    return lanes, constant
