"""32 weights in 34 bytes: a float16 scale, then signed bytes."""

from lockstep.fast.kernels.lanes import WIDTH, float16_at, floats, fma, signed_octets, splat
from lockstep.fast.kernels.lanes import multiplied, to_floats

GROUP = 32


def share(of, blocks, start, x, at, sums, group, lanes, constant):
    low, high = signed_octets(blocks, start + 2), signed_octets(blocks, start + 2 + WIDTH)
    some = multiplied(to_floats(low), floats(x, at))
    some = fma(to_floats(high), floats(x, at + WIDTH), some)
    return fma(splat(float16_at(blocks, start)), some, lanes), constant
