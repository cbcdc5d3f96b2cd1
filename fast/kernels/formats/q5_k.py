"""256 weights in 176 bytes: as Q4_K, with 32 bytes of top bits before the codes.

Bit g of a byte of top bits belongs to group g.
"""

from lockstep.fast.kernels.formats.six_bits import six_bit_pair
from lockstep.fast.kernels.kernel import inlined
from lockstep.fast.kernels.lanes import (
    WIDTH,
    field,
    float16_at,
    floats,
    fma,
    joined,
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
        here = at + index * 32
        some = multiplied(codes(blocks, start, index, 0), floats(x, here))
        some = fma(codes(blocks, start, index, WIDTH), floats(x, here + WIDTH), some)
        scale, minimum = six_bit_pair(blocks, start + 4, index)
        lanes = fma(splat(d * scale), some, lanes)
        constant -= dmin * minimum * scalar(sums, group + index)
    return lanes, constant


@inlined
def codes(blocks, start, group, offset):
    low = field(octets(blocks, start + 48 + group // 2 * 32 + offset), group % 2 * 4, 15)
    top = field(octets(blocks, start + 16 + offset), group, 1)
    return to_floats(joined(low, top, 4))
